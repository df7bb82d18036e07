"""The table of aims and figures: what is short and who is faster is said, and of the figures that are kept, why."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CEILINGS = {"copy_bytes_per_s": 4e12, "bf16_flop_per_s": 8e14}


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in [name for name in sys.modules if name.partition(".")[0] in ("device_bench", "kernel_bench")]:
        monkeypatch.delitem(sys.modules, name)


def case(rows: int, us: float, floor: float, target: float | None, **others: float) -> dict[str, Any]:
    known = {"op": "norm.rms", "variant": "d 5120", "rows": rows, "us": us, "target": target}
    return known | {"bytes": floor * 4e6, "flop": 0.0, "others": {name: {"us": us} for name, us in others.items()}}


def result(*cases: dict[str, Any]) -> dict[str, Any]:
    return {"store": {"ceilings": CEILINGS, "cases": list(cases)}, "attn": None}


NOTES = [{"op": "norm.rms", "variant": "1280", "short": "another"}, {"op": "norm.rms", "short": "latency"}]


def test_a_size_short_of_its_aim_is_marked_and_explained_and_launch_bound_ones_are_times() -> None:
    from device_bench import aims

    text = aims.figures(result(case(1, 1.5, 0.5, 0.8), case(64, 4, 2, 0.8), case(4096, 20, 19, 0.85)), NOTES)
    row = next(line for line in text.splitlines() if line.startswith("| norm.rms"))
    assert row == "| norm.rms d 5120 | 0.80; 0.85 from 4,096 | 1.5 µs | **0.50** | 0.95 | 0.30 [1] |"
    assert text.endswith("1. latency")


def test_what_is_at_its_aim_has_no_note() -> None:
    from device_bench import aims

    text = aims.figures(result(case(64, 4, 3.2, 0.8), case(256, 4, 3, None)), NOTES)
    assert "latency" not in text
    assert text.endswith("| norm.rms d 5120 | 0.80 | 0.80 |  |\n")


def test_only_alternatives_that_are_faster_by_more_than_what_repeats_are_listed() -> None:
    from device_bench import aims

    some = case(1, 4, 3, None, torch=5), case(8, 4, 3, None, torch=3.95), case(64, 4, 3, None, torch=3.2, cublas=3.6)
    text = aims.behind(result(*some), [{"op": "norm.rms", "behind": "because"}])
    assert text.startswith("Of 3 cases with an alternative in the same run, 1 are slower")
    assert text.splitlines()[-1] == "| norm.rms d 5120 | 64 | 4.0 | torch 3.2 | 1.25 | because |"
    assert aims.behind(result(case(1, 2, 1, 0.8)), []) == "Not measured yet."


def test_every_figure_of_the_repository_that_is_short_or_behind_has_a_reason() -> None:
    from device_bench import aims
    from kernel_bench.cases import AREAS

    files = [BENCHMARKS / f"results/gpu-{area}.json" for area in AREAS]
    known, missing = aims.load_notes(), []
    results = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()}
    cases = aims.all_cases(results)
    for key, mine in aims.by_kernel(cases):
        if aims.shortfalls(mine) and not aims.note(known, key, "short"):
            missing.append((*key, "short"))
        if any(map(aims.is_behind, mine)) and not aims.note(known, key, "behind"):
            missing.append((*key, "behind"))
    assert not missing
