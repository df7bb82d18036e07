"""Plugins and cores of different versions: what fits is loaded, what does not is refused with both sides named.

Until there is a release to take plugins from, they are made here: manifests for other versions of the plugin API, and
prefixes of the released contract chains (``contracts/history``), installed as real distributions. The core of another
version is this one with another ``API_VERSION``, or with a record that has fewer or more fields.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
from fake_venv import FakeVenv, build_wheels, missing_tools

from deepinfer_contracts import CONTRACTS
from deepinfer_core.plugins import contract_check

RELEASED = json.loads((Path(__file__).parents[2] / "contracts/history/1.0.json").read_text())["contracts"]
RECORD = "SchedulerOutputs"
CHAIN = RELEASED[RECORD]["chain"]
N_FIELDS = len(RELEASED[RECORD]["fields"])
PROJECT = """
[build-system]
requires = ["hatchling>=1.24"]
build-backend = "hatchling.build"
[project]
name = "skew-{name}"
version = "1.0"
[project.entry-points."deepinfer.manifest"]
skew-{name} = "skew_{name}:deepinfer.toml"
[project.entry-points."deepinfer.samplers"]
skew_{name} = "skew_{name}.plugin"
"""
PLUGIN = """
from deepinfer_core import hookimpl

@hookimpl
def deepinfer_sampler_create(name):
    raise RuntimeError("this sampler is only loaded")
"""
# Plugin -> its API range, and how many leading fields of the record it reads with which chain.
API = {
    "a09": ">=0.9,<1",
    "a09up": ">=0.9",
    "a10": ">=1.0,<2",
    "a10only": "==1.0",
    "a11": ">=1.1,<2",
    "a2": ">=2.0,<3",
}
READS = {
    "r0": (0, CHAIN[0]),
    "r14": (14, CHAIN[14]),
    "rall": (N_FIELDS, CHAIN[N_FIELDS]),
    "rmore": (len(CONTRACTS[RECORD].fields) + 1, "0123456789abcdef"),
    "rother": (14, CHAIN[13]),
    "rnamed": (14, "f" * 16),
}
# As rother, but it tells the chain after each field: all are other ones from field 9 on.
EACH = {"rnamed": [*CHAIN[1:10], *["f" * 16] * 5]}
CORES = {
    (0, 9): {"a09", "a09up"},
    (1, 0): {"a09up", "a10", "a10only"},
    (1, 1): {"a09up", "a10", "a11"},
    (2, 0): {"a09up", "a2"},
}
LISTING = """
import sys
import deepinfer_core
deepinfer_core.API_VERSION = ({}, {})
from deepinfer_core.cli import main
sys.exit(main(["plugins", "--json"]))
"""


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> FakeVenv:
    missing = missing_tools()
    if missing:
        pytest.skip(f"distributions are installed with {missing}, which is not here")
    folder = tmp_path_factory.mktemp("skew")
    for name in (*API, *READS):
        package = folder / name / f"skew_{name}"
        package.mkdir(parents=True)
        (package.parent / "pyproject.toml").write_text(PROJECT.format(name=name))
        (package / "__init__.py").write_text("")
        (package / "plugin.py").write_text(PLUGIN)
        manifest = f'schema = 1\napi = "{API.get(name, ">=0.9")}"\n'
        if name in READS:
            fields, chain = READS[name]
            manifest += f'[contracts.{RECORD}]\nfields = {fields}\nchain = "{chain}"\n'
            manifest += f"chains = {EACH[name]}\n" if name in EACH else ""
        (package / "deepinfer.toml").write_text(f'{manifest}[[sampler]]\nname = "skew_{name}"\n')
    made = FakeVenv.create(folder / "venv")
    made.install(*build_wheels([folder / name for name in (*API, *READS)], folder / "wheels"))
    return made


def listed(venv: FakeVenv, core: tuple[int, int]) -> dict[str, dict[str, str]]:
    """Plugin -> its row, as a core of this API version lists it."""
    command = [str(venv.python), *["-O"] * sys.flags.optimize, "-c", LISTING.format(*core)]
    done = subprocess.run(
        command, cwd=venv.folder, env=venv.environment(), capture_output=True, text=True, timeout=60, check=True
    )
    rows = json.loads(done.stdout)["plugins"]
    return {row["name"].removeprefix("skew_"): row for row in rows if row["name"].startswith("skew_")}


@pytest.mark.parametrize("core", CORES, ids=lambda core: f"core{core[0]}.{core[1]}")
def test_plugins_are_accepted_by_the_cores_of_their_range_only(venv: FakeVenv, core: tuple[int, int]) -> None:
    rows = listed(venv, core)
    assert {name for name in API if rows[name]["state"] == "found"} == CORES[core]
    for name in API.keys() - CORES[core]:
        needs = f"needs API {API[name]}; core has {core[0]}.{core[1]}"
        assert (rows[name]["state"], rows[name]["code"], rows[name]["detail"]) == ("incompatible", "E_API", needs)


def test_refusal_of_an_api_names_both_ranges(venv: FakeVenv) -> None:
    done = venv.run("generate", "--sampler", "skew_a11", "--backend", "cpu", "x")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.removeprefix("backend: cpu (chosen by --backend)\n") == (
        "deepinfer: E_API: plugin skew_a11 (skew-a11 1.0) needs plugin API >=1.1,<2\n"
        "  reason: this core provides 1.0\n"
        "  remedy: pip install -U skew-a11 deepinfer-core\n"
    )


def test_plugin_that_reads_fewer_fields_than_there_are_loads(venv: FakeVenv) -> None:
    rows = listed(venv, (1, 0))
    assert {name: rows[name]["state"] for name in ("r0", "r14", "rall")} == dict.fromkeys(
        ("r0", "r14", "rall"), "found"
    )
    assert venv.run("doctor", "skew_r14").returncode == 0


def test_plugin_that_reads_more_or_other_fields_is_refused_with_what_is_here(venv: FakeVenv) -> None:
    rows = listed(venv, (1, 0))
    here = CONTRACTS[RECORD]
    fields, last = len(here.fields), here.fields[-1][0]
    for name, difference in (
        ("rmore", f"it reads {fields + 1} fields, and the record here has {fields}, up to {last}"),
        ("rnamed", f"at field 9, {here.fields[9][0]}, which is {here.fields[9][1]} here"),
        ("rother", f"chain after field 14 is {CHAIN[13]} there and {CHAIN[14]} here"),
    ):
        row = rows[name]
        wanted = f"{RECORD} of skew-{name} 1.0 differs: {difference}"
        assert (row["state"], row["code"], row["detail"]) == ("incompatible", "E_CONTRACT", wanted)


@pytest.mark.parametrize("record", RELEASED)
def test_plugin_of_the_release_fits_every_prefix_here_and_an_older_core_only_its_own(
    record: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = RELEASED[record]["chain"]
    for n, prefix in enumerate(chain):
        assert contract_check.contract_difference(record, n, prefix) is None
    info = CONTRACTS[record]
    older = attrs.evolve(info, fields=info.fields[:3], chain=info.chain[:4])
    monkeypatch.setitem(contract_check.CONTRACTS, record, older)
    assert contract_check.contract_difference(record, 3, chain[3]) is None
    difference = contract_check.contract_difference(record, 4, chain[4])
    assert difference == (f"it reads 4 fields, and the record here has 3, up to {info.fields[2][0]}", "")
