"""The conformance kit catches each of the mutants: what it passes can be trusted that far."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
INFRASTRUCTURE = ("layout_faults", "mutant", "mutant_backends", "run_mutants", "toy_plugins", "run_toys", "conftest")
NEEDS = {"ascend_layouts": "deepinfer_ascend"}
"""Area -> what has to be installed for it."""
AREAS = sorted(p.stem for p in HERE.glob("*.py") if p.stem not in INFRASTRUCTURE and not p.stem.startswith("test_"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("area", AREAS)
def test_mutants_of_area_are_caught(area: str) -> None:
    if area in NEEDS and importlib.util.find_spec(NEEDS[area]) is None:
        pytest.skip(f"{NEEDS[area]} is not installed")
    result = subprocess.run(
        [sys.executable, str(HERE / "run_mutants.py"), area], capture_output=True, text=True, timeout=580, check=False
    )
    assert result.stdout, result.stderr[-3000:]
    answer = json.loads(result.stdout)
    missed = [m for m in answer["mutants"] if m["status"] != "caught"]
    assert answer["mutants"]
    assert not missed, json.dumps(missed, indent=1)
    assert not answer["sound"], json.dumps(answer["sound"], indent=1)


def test_mutants_of_all_areas_are_many_and_named_once() -> None:
    code = (
        "import importlib, json, sys; sys.path.insert(0, sys.argv[1]); "
        "print(json.dumps([m.name for area in sys.argv[2:] for m in importlib.import_module(area).MUTANTS]))"
    )
    run = [sys.executable, "-c", code, str(HERE), *AREAS]
    names = json.loads(subprocess.run(run, capture_output=True, text=True, timeout=60, check=True).stdout)
    assert len(names) >= 25
    assert sorted(set(names)) == sorted(names)


def test_every_symbol_of_a_library_that_backend_ascend_calls_has_faults() -> None:
    table = pytest.importorskip("deepinfer_ascend.vendor.table").TABLE
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); import ascend_layouts; "
        "print(json.dumps([m.name for m in ascend_layouts.MUTANTS]))"
    )
    run = [sys.executable, "-c", code, str(HERE)]
    names = json.loads(subprocess.run(run, capture_output=True, text=True, timeout=60, check=True).stdout)
    handles = {"flash_mla.get_mla_metadata", "deep_gemm.get_paged_mqa_logits_metadata"}  # they lay out nothing
    lacking = [symbol for symbol in table if symbol not in handles and not any(symbol in name for name in names)]
    assert not lacking, "tests/mutants/ascend_layouts.py has no fault of these"
