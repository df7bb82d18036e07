"""The backend object, its op table, and the plugin around it."""

import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import attrs
import numpy as np
import pytest
import torch

from deepinfer_core.errors import ConfigError, ShapeContractError
from deepinfer_core.interfaces import Backend
from deepinfer_core.types import HostInfo
from deepinfer_cpu import backend as cpu

OPS_TOML = Path(__file__).parents[3] / "contracts" / "schema" / "ops.toml"


@pytest.fixture(scope="module")
def table() -> list[dict]:
    if not OPS_TOML.exists():
        pytest.skip("the op table is part of the repository, not of this distribution")
    return tomllib.loads(OPS_TOML.read_text())["op"]


def test_op_table_lists_exactly_these_ops(table):
    assert {op["id"] for op in table} == set(cpu.OPS) | set(cpu.ABSENT)


@pytest.mark.parametrize("op", sorted(cpu.OPS))
def test_signature_of_an_op_equals_the_table(table, op):
    listed = next(o for o in table if o["id"] == op)
    assert cpu.signature(op) == listed["signature"]
    assert listed["doc"]
    assert listed["tolerance"]
    assert listed["default"] == ("" if listed["required"] else "cpu")


def test_absent_ops_have_no_default(table):
    for op in table:
        if op["id"] in cpu.ABSENT:
            assert (op["required"], op["default"]) == (False, "")


@pytest.mark.parametrize("op", sorted(cpu.OPS))
def test_every_op_is_documented(op):
    assert (cpu.OPS[op].__doc__ or "").strip()


def test_backend_satisfies_the_protocol(backend):
    assert isinstance(backend, Backend)
    assert backend.name == "cpu"
    assert backend.norm.rms is backend.ops["norm.rms"]
    assert set(backend.plan.values()) == {"deepinfer-cpu"}


@pytest.mark.parametrize("op", cpu.ABSENT)
def test_absent_optional_op_is_none(backend, op):
    group, name = op.split(".")
    assert getattr(getattr(backend, group), name) is None
    assert op not in backend.ops


def test_capabilities_are_json_and_name_the_formats(backend):
    caps = backend.capabilities
    assert {"v41", "v41_fp4", "bf16", "f32"} == caps.kv_formats
    assert {"index_fp4", "index_mxfp8", "index_fp8"} <= caps.index_formats
    assert caps.graph is False
    assert attrs.asdict(caps)["arch"] == "cpu"
    assert caps.memory_bytes > 0


@attrs.define
class Inner:
    counts: dict
    parts: list
    ids: np.ndarray | None = None
    absent: np.ndarray | None = None
    total: int = 0


@attrs.define
class Record(Inner):
    extra: np.ndarray | None = None


def test_bind_inputs_shares_the_memory_of_every_array(backend):
    record = Record(
        counts={1: np.arange(3, dtype=np.int32), 2: np.arange(2, dtype=np.int32)},
        parts=[np.ones(2, dtype=np.float32)],
        ids=np.arange(6, dtype=np.int32).reshape(2, 3),
        total=6,
        extra=np.zeros(2, dtype=np.bool_),
    )
    bound = backend.bind_inputs(record)
    record.ids[0, 0] = 77
    record.counts[2][1] = 88
    record.parts[0][0] = 99
    record.extra[1] = True
    assert type(bound) is Record
    assert bound.ids[0, 0].item() == 77
    assert bound.counts[2][1].item() == 88
    assert bound.parts[0][0].item() == 99
    assert bound.extra.tolist() == [False, True]
    assert (bound.absent, bound.total) == (None, 6)
    assert isinstance(record.ids, np.ndarray)
    assert isinstance(record.counts[1], np.ndarray)


def test_bind_inputs_takes_the_contract_records(backend):
    from deepinfer_contracts import InputMetadataV41

    record = InputMetadataV41(positions=np.arange(4, dtype=np.int32), slot_main={2: np.arange(4, dtype=np.int32)})
    bound = backend.bind_inputs(record)
    record.slot_main[2][0] = 5
    assert bound.slot_main[2].tolist() == [5, 1, 2, 3]
    assert isinstance(bound.positions, torch.Tensor)
    assert bound.input_ids is None


def test_to_host_gives_numpy_also_for_bf16(backend):
    x = torch.arange(3.0)
    host = backend.to_host(x)
    x[0] = 5
    assert host.tolist() == [5.0, 1.0, 2.0]
    assert backend.to_host(x.bfloat16()).dtype == np.float32
    assert backend.to_host(np.arange(2)).tolist() == [0, 1]


def test_close_twice_is_fine():
    be = cpu.create()
    be.close()
    be.close()


def test_create_for_another_device_is_refused():
    with pytest.raises(ConfigError, match="device 'cuda:0' does not belong to backend 'cpu'"):
        cpu.create("cuda:0")


def test_unit_bytes_of_an_unknown_pool_is_refused(backend):
    with pytest.raises(ShapeContractError, match="'pool'"):
        backend.unit_bytes([], "ring")


def test_probe_finds_the_host_usable():
    from deepinfer_cpu.probe import probe

    report = probe(HostInfo(os="linux", machine="x86_64", python="3.11"))
    assert (report.present, report.usable, report.arch) == (True, True, "cpu")
    assert report.driver.startswith("torch ")


def test_probe_without_torch_names_the_remedy(monkeypatch):
    import importlib.metadata

    from deepinfer_cpu.probe import probe

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    report = probe(HostInfo(os="linux", machine="x86_64", python="3.11"))
    assert not report.usable
    assert report.reasons == ("torch is not installed",)
    assert "pip install" in report.remedy


def test_importing_plugin_and_probe_imports_no_torch():
    code = "import sys, deepinfer_cpu.plugin, deepinfer_cpu.probe; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_manifest_names_one_backend():
    manifest = tomllib.loads(files("deepinfer_cpu").joinpath("deepinfer.toml").read_text())
    (entry,) = manifest["backend"]
    assert (manifest["schema"], manifest["api"], entry["name"]) == (1, ">=1.0,<2", "cpu")


def test_hooks_create_a_backend():
    from deepinfer_cpu import plugin

    made = plugin.deepinfer_backend_create(name="cpu", device=None, config=None)
    assert made.norm.rms is not None
    report = plugin.deepinfer_backend_probe(name="cpu", host=HostInfo(os="linux", machine="x86_64", python="3.11"))
    assert report.usable


def test_create_runs_on_one_thread_and_close_restores_the_process():
    torch.set_num_threads(2)
    backend = cpu.create()
    assert torch.get_num_threads() == 1
    backend.close()
    backend.close()
    assert torch.get_num_threads() == 2


def test_create_with_num_threads_takes_them():
    backend = cpu.create(config=SimpleNamespace(num_threads=3))
    assert torch.get_num_threads() == 3
    backend.close()


def test_manifest_claims_what_the_capabilities_have():
    text = files("deepinfer_cpu").joinpath("deepinfer.toml").read_text("utf-8")
    [table] = tomllib.loads(text)["backend"]
    has = cpu.capabilities()
    want = {f"feature:{name}" for name in has.features} | {f"kv:{name}" for name in has.kv_formats | has.index_formats}
    assert set(table["claims"]) == want
    assert len(table["claims"]) == len(want)
