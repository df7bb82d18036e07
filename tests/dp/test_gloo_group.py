"""The vote protocol between processes: gloo groups of 2 and 4 ranks, each over its own core and its own traffic."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the groups are made by torch.distributed")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "deepinfer_core" / "tests"))

from dp_ranks import check_group

PROGRAM = Path(__file__).with_name("gloo_rank.py")
TIMEOUT_S = 5
SEED = 20260
BUSY = [0.06, 0.02, 0.1, 0.0]  # the last of four ranks never gets a request: it lives of placeholders
INTERVAL_ANY = 7


def run_group(
    folder: Path,
    size: int,
    steps: int,
    *,
    dies: bool = False,
    versions: list[str] | None = None,
    limit_s: float = 110,
    **config: Any,
) -> list[dict[str, Any]]:
    """The reports of all ranks. ``dies``: the last one ends itself in a second act. ``versions``: of a plugin that each
    rank has; they compare them, and do nothing else."""
    settings = {"size": size, "steps": steps, "seed": SEED, "busy": BUSY[:size], "timeout_s": TIMEOUT_S, "dies": dies}
    settings["versions"] = versions
    (folder / "settings.json").write_text(json.dumps({**settings, "config": config}), "utf-8")
    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(folder / "settings.json"), str(rank)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        errors = [rank.communicate(timeout=limit_s)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    expected = [9 if dies and rank == size - 1 else 0 for rank in range(size)]
    assert [rank.returncode for rank in ranks] == expected, "\n".join(errors)
    return [json.loads((folder / f"rank{rank}.json").read_text("utf-8")) for rank in range(size)]


def check_reports(reports: list[dict[str, Any]], steps: int, depth: int) -> dict[str, int]:
    counts = check_group([r["trace"] for r in reports], interval_any=INTERVAL_ANY, depth=depth)
    assert len({r["steps"] for r in reports}) == 1
    assert reports[0]["steps"] >= steps
    assert sum(r["requests"] for r in reports) > steps / 20
    return counts


def test_two_ranks_make_the_same_kind_of_step_and_end_together(tmp_path):
    reports = run_group(tmp_path, 2, 1000, depth=1)
    counts = check_reports(reports, 1000, depth=1)
    assert all(counts.values()), counts


def test_four_ranks_hear_of_a_dead_one_within_the_time_limit(tmp_path):
    """First a whole run in a pipeline with drafts, then the last rank dies in the middle of the next."""
    reports = run_group(tmp_path, 4, 400, dies=True, depth=2, num_draft=2)
    for report in reports[:3]:
        act = report["second_act"]
        assert "E_GROUP: rank" in act["error"]
        assert act["seconds"] < TIMEOUT_S + 5
        assert act["steps"] <= 42
    counts = check_reports(reports, 400, depth=2)
    assert all(counts.values()), counts


def test_two_ranks_with_other_plugins_both_refuse_and_neither_hangs(tmp_path):
    reports = run_group(tmp_path, 2, 0, versions=["1.0", "1.1"], limit_s=60)
    text = (
        "E_PLUGIN_LOCK: the plugins of rank 1 are not those of rank 0\n"
        "  reason: backend cpu: version is 1.0 at rank 0, and 1.1 at rank 1\n"
        "  remedy: install the same releases in every rank's environment"
    )
    assert [report["error"] for report in reports] == [text, text]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("config", [{"depth": 1}, {"depth": 2}, {"depth": 2, "num_draft": 3, "max_prefill_burst": 2}])
def test_groups_agree_for_ten_thousand_steps(tmp_path, size, config):
    reports = run_group(tmp_path, size, 10_000, limit_s=800, **config)
    check_reports(reports, 10_000, config["depth"])
