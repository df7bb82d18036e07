"""``build_backend``: groups, defaults, the plan, and one error for everything that is missing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from deepinfer_core import backend as module
from deepinfer_core.errors import UnsupportedOp
from deepinfer_core.interfaces import Backend, build_backend
from deepinfer_core.types import Capabilities

TABLE = {"norm.rms": True, "gemm.dense": True, "meta.sort": False, "moe.mega": False}
CAN = Capabilities(name="toy", device_type="toy", arch="toy1")


@pytest.fixture(autouse=True)
def _small_table(monkeypatch):
    monkeypatch.setattr(module, "op_table", lambda: TABLE)


def rms(x):
    return ("rms", x)


def dense(a, w):
    return ("dense", a, w)


def functions():
    return {
        "unit_bytes": lambda specs, pool: 32,
        "alloc_caches": lambda specs, units: "caches",
        "bind_inputs": lambda record: record,
        "to_host": lambda tensor: tensor,
    }


def reference():
    """What ``cpu`` is to other backends: every op, also those that have no default."""
    ops = {"norm.rms": rms, "gemm.dense": dense, "meta.sort": sorted}
    return build_backend("cpu", ops, device="cpu", capabilities=CAN, provider="deepinfer-cpu", **functions())


def bare():
    """Defaults without any op."""
    return SimpleNamespace(name="bare", device="cpu", capabilities=CAN, ops={}, plan={}, close=lambda: None)


def test_build_backend_makes_groups_and_satisfies_the_protocol():
    made = build_backend(
        "toy", {"norm.rms": rms, "gemm.dense": dense}, device="d", capabilities=CAN, defaults=reference(), **functions()
    )
    assert isinstance(made, Backend)
    assert made.norm.rms(3) == ("rms", 3)
    assert made.gemm.dense is dense


def test_build_backend_fills_optional_ops_and_says_so_in_the_plan():
    made = build_backend("toy", {"norm.rms": rms, "gemm.dense": dense}, defaults=reference(), provider="acme-toy")
    assert made.meta.sort is sorted
    assert made.moe.mega is None
    assert dict(made.plan) == {"norm.rms": "acme-toy", "gemm.dense": "acme-toy", "meta.sort": "deepinfer-cpu"}
    assert "moe.mega" not in made.ops
    assert (made.device, made.capabilities.name, made.unit_bytes([], "main")) == ("cpu", "toy", 32)


def test_build_backend_with_delegated_ops_takes_them_from_the_defaults_and_says_so():
    made = build_backend("toy", {"norm.rms": rms}, delegated=["gemm.dense"], defaults=reference(), provider="acme-toy")
    assert made.gemm.dense is dense
    assert dict(made.plan) == {"norm.rms": "acme-toy", "gemm.dense": "deepinfer-cpu", "meta.sort": "deepinfer-cpu"}


def test_build_backend_with_wrong_delegated_ops_lists_each():
    own = {"norm.rms": rms}
    with pytest.raises(UnsupportedOp) as caught:
        build_backend("toy", own, delegated=["norm.rms", "gemm.dens", "gemm.dense"], defaults=bare(), **functions())
    assert caught.value.what == (
        "backend 'toy' is incomplete: unknown op 'gemm.dens'; did you mean 'gemm.dense'?, op norm.rms is given and "
        "delegated, op gemm.dense"
    )


def test_build_backend_without_required_ops_lists_them_all_with_unknown_ones():
    with pytest.raises(UnsupportedOp) as caught:
        build_backend("toy", {"norm.rsm": rms}, device="d", capabilities=CAN, defaults=reference())
    assert str(caught.value) == (
        "E_OP: backend 'toy' is incomplete: unknown op 'norm.rsm'; did you mean 'norm.rms'?, function alloc_caches (a "
        "device needs its own), function bind_inputs (a device needs its own), function to_host (a device needs its "
        "own), op norm.rms, op gemm.dense\n"
        "  reason: it gives 1 ops; defaults of optional ones come from the cpu plugin\n"
        "  remedy: implement what is listed"
    )


def test_build_backend_takes_the_defaults_from_the_cpu_plugin_through_the_registry(site, sources):
    cpu = (
        "from deepinfer_core import hookimpl\nfrom deepinfer_core.interfaces import build_backend\n"
        "from deepinfer_core.types import Capabilities\n"
        "ops = {'norm.rms': abs, 'gemm.dense': max, 'meta.sort': sorted}\n"
        "@hookimpl\ndef deepinfer_backend_create(name):\n"
        "    return build_backend(name, ops, device='cpu', capabilities=Capabilities(name, 'cpu', 'cpu'),\n"
        "        unit_bytes=max, alloc_caches=max, bind_inputs=abs, to_host=abs)\n"
    )
    toy = (
        "from deepinfer_core import hookimpl\nfrom deepinfer_core.interfaces import build_backend\n"
        "@hookimpl\ndef deepinfer_backend_create(name):\n"
        "    return build_backend(name, {'norm.rms': min, 'gemm.dense': min})\n"
    )
    site.add("cpu", cpu, dist="deepinfer-cpu")
    site.add("toy", toy)
    from deepinfer_core.plugins.hooks import Hooks

    manager = site.manager()
    made = Hooks(manager).backend_create(manager.require("backend", "toy"), None, manager.config)
    assert dict(made.plan) == {"norm.rms": "acme-toy", "gemm.dense": "acme-toy", "meta.sort": "deepinfer-cpu"}


def test_build_backend_without_cpu_says_that_there_are_no_defaults(site):
    toy = (
        "from deepinfer_core import hookimpl\nfrom deepinfer_core.interfaces import build_backend\n"
        "@hookimpl\ndef deepinfer_backend_create(name):\n"
        "    return build_backend(name, {'norm.rms': min, 'gemm.dense': min})\n"
    )
    site.add("toy", toy)
    from deepinfer_core.plugins.hooks import Hooks

    manager = site.manager()
    with pytest.raises(UnsupportedOp) as caught:
        Hooks(manager).backend_create(manager.require("backend", "toy"), None, manager.config)
    assert caught.value.reason == (
        "it gives 2 ops; defaults of optional ones come from no cpu plugin here (installed backends: toy)"
    )


def test_close_is_called_once():
    closed: list[int] = []
    made = build_backend(
        "toy", {"norm.rms": rms, "gemm.dense": dense}, defaults=reference(), close=lambda: closed.append(1)
    )
    made.close()
    made.close()
    assert closed == [1]


def test_build_backend_over_the_real_table_fills_from_the_installed_cpu_plugin(monkeypatch):
    pytest.importorskip("torch", reason="the cpu plugin runs on torch")
    monkeypatch.undo()
    from deepinfer_contracts import OPS
    from deepinfer_cpu.backend import OPS as CPU_OPS

    required = {op: CPU_OPS[op] for op, record in OPS.items() if record.required}
    made = build_backend("acme", required)
    assert isinstance(made, Backend)
    assert {made.plan[op] for op in required} == {"acme"}
    assert {made.plan[op] for op in made.plan if op not in required} == {"deepinfer-cpu"}
    assert made.mhc.pre is CPU_OPS["mhc.pre"]
    assert made.moe.mega is None
    made.close()


def test_plan_names_other_providers_of_given_ops():
    ops = {"norm.rms": rms, "gemm.dense": dense}
    built = build_backend(
        "toy",
        ops,
        device="toy:0",
        capabilities=CAN,
        provider="acme-toy",
        providers={"gemm.dense": "acme-gemm"},
        defaults=reference(),
        **functions(),
    )
    assert built.plan == {"norm.rms": "acme-toy", "gemm.dense": "acme-gemm", "meta.sort": "deepinfer-cpu"}
