"""The scheduler benchmark runs, at sizes that take seconds; what it measures is not looked at."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "scheduler.py"


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, **environment},
    )


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """The result of one smoke run: (process, figures)."""
    out = tmp_path_factory.mktemp("smoke") / "scheduler.json"
    done = run("--smoke", "--json", str(out))
    if done.returncode:
        raise AssertionError(done.stderr)
    return done, json.loads(out.read_text(encoding="utf-8"))


def test_smoke_runs_every_scenario_or_says_why_not(smoke):
    done, figures = smoke
    ran = {row["name"] for row in figures["cases"]}
    listed = {line.split()[0] for line in run("--smoke", "--list").stdout.splitlines()}
    assert ran | set(figures["not_run"]) == listed
    assert {"decode-1-k0", "churn-256", "context-4k", "pressure-256", "storm-256", "inputs-common"} <= ran
    for name, why in figures["not_run"].items():
        assert f"{name:20} not run: {why}" in done.stdout


def test_smoke_splits_each_step_by_phase(smoke):
    _, figures = smoke
    for row in figures["cases"]:
        assert set(row["us"]) == {"schedule", "pack", "pack_sampler", "commit", "emit", "done"}
        assert row["total_us"] > 0
        assert row["tokens_a_step"] > 0


def test_smoke_names_a_verdict_for_every_target(smoke):
    done, figures = smoke
    assert {t["verdict"] for t in figures["targets"]} <= {"pass", "miss", "not run"}
    assert all(t["what"] in done.stdout for t in figures["targets"])


def test_smoke_compares_with_plain_python_on_the_same_points(smoke):
    _, figures = smoke
    for row in figures["comparisons"]:
        assert {"core", "plain-python"} <= set(row["us"])
        assert all(us > 0 for us in row["us"].values())


def test_smoke_shows_host_work_at_both_depths(smoke):
    _, figures = smoke
    assert [row["depth"] for row in figures["overlap"]] == [1, 2]
    assert all(row["host_us"] > 0 for row in figures["overlap"])


def test_peer_modes_run_on_an_external_scheduler_too():
    module = str(Path(__file__).with_name("peer_module.py"))
    done = run("--smoke", "--peer", "decode", "--peer", "admit", DEEPINFER_PEER_ENGINE=module)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    measured = {(r["scheduler"], r["mode"]) for r in rows}
    assert measured == {(s, m) for s in ("core", "plain-python", "external") for m in ("decode", "admit")}
    assert done.stderr == ""


def test_probe_of_the_core_finds_nothing_missing_and_no_needless_preemption():
    done = run("--smoke", "--peer", "probe", DEEPINFER_PEER_ENGINE="")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    found = {r["what"]: r for r in rows if r["scheduler"] == "core"}
    for what in ("plain runs", "abort between chunks"):
        assert (found[what]["ended"], found[what]["missing_blocks"], found[what]["missing_slots"]) == (True, 0, 0)
    assert found["full pool, nobody grows"]["preempted"] == 0
    assert found["12,288 tokens in a step"]["works"] is True
    assert "DEEPINFER_PEER_ENGINE is not set" in done.stderr


def test_peer_module_without_the_factory_is_refused_by_name():
    done = run("--smoke", "--peer", "admit", DEEPINFER_PEER_ENGINE="json")
    assert done.returncode == 1
    assert done.stderr == "scheduler.py: DEEPINFER_PEER_ENGINE: json has no deepinfer_peer(settings)\n"


def test_plot_draws_the_figures_or_says_what_it_needs(smoke, tmp_path):
    _, figures = smoke
    source, target = tmp_path / "figures.json", tmp_path / "figures.svg"
    source.write_text(json.dumps(figures), encoding="utf-8")
    done = run("--plot", str(target), "--json", str(source))
    if importlib.util.find_spec("matplotlib"):
        assert (done.returncode, target.read_text(encoding="utf-8")[:5]) == (0, "<?xml")
    else:
        assert done.returncode == 1
        assert done.stderr == "scheduler.py: the picture needs matplotlib: pip install matplotlib\n"


def test_plot_without_figures_is_refused(tmp_path):
    done = run("--plot", str(tmp_path / "figures.svg"))
    assert done.returncode == 1
    assert done.stderr == "scheduler.py: --plot needs --json FILE with the figures of an earlier run\n"


def test_unknown_case_is_refused_by_name():
    done = run("--only", "nonesuch")
    assert done.returncode == 1
    assert done.stderr == "scheduler.py: no case or group 'nonesuch'; --list shows them\n"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_against_a_revision_compares_both_builds(tmp_path):
    out = tmp_path / "against.json"
    done = run("--smoke", "--against", "HEAD", "--runs", "1", "--only", "decode-4-k0", "--json", str(out))
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text(encoding="utf-8"))
    assert [c["name"] for c in figures["cases"]] == ["decode-4-k0"]
    assert len(figures["against"]) == 40


def test_against_an_unknown_revision_is_refused():
    done = run("--smoke", "--against", "no-such-revision", "--only", "decode-4-k0")
    assert done.returncode == 1
    assert "cannot build no-such-revision: git knows no revision 'no-such-revision'" in done.stderr
