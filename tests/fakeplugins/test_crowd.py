"""With all fake distributions installed at once, commands that need none of them go on as if there were none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_venv import cases
from transcripts import Runner

ROOT = Path(__file__).parent
DISTRIBUTIONS = {"fake-" + path.name.replace("_", "-") for path in cases(ROOT)}
GENERATE = "deepinfer generate --backend cpu --max-tokens 4 --temperature 0 'import os'"


@pytest.fixture
def imports(tmp_path: Path) -> Path:
    """A file that tells which packages of interest a command ran code of."""
    path = tmp_path / "imports"
    path.touch()
    return path


def test_generate_answers_as_without_them_and_imports_none(crowd: Runner, imports: Path, tmp_path: Path) -> None:
    out, err, status = crowd.run(GENERATE, tmp_path, FAKEPLUGINS_IMPORTS=str(imports))
    assert (out, err, status) == crowd.run(GENERATE, tmp_path, DEEPINFER_PLUGINS="")
    assert (err, status) == ("backend: cpu (chosen by --backend)\n", 0)
    assert imports.read_text().split() == ["torch"]


@pytest.mark.parametrize("command", ["deepinfer --help", "deepinfer --version", "deepinfer plugins"])
def test_commands_without_a_model_import_no_plugin_and_no_torch(
    crowd: Runner, imports: Path, tmp_path: Path, command: str
) -> None:
    _, err, status = crowd.run(command, tmp_path, FAKEPLUGINS_IMPORTS=str(imports))
    assert (err, status, imports.read_text()) == ("", 0, "")


def test_listing_shows_version_and_path_of_every_distribution(crowd: Runner, tmp_path: Path) -> None:
    out, _, _ = crowd.run("deepinfer plugins --json", tmp_path)
    listed = {item["distribution"]: item for item in json.loads(out)["plugins"]}
    assert listed.keys() >= DISTRIBUTIONS
    for name in DISTRIBUTIONS:
        location = listed[name]["location"]
        assert listed[name]["version"] == "1.0"
        # Two have no package any more: one was deleted, the folder of the other is gone.
        expected = None if name in ("fake-leftover", "fake-vanished") else crowd.venv.site / name.replace("-", "_")
        assert location == (str(expected) if expected else None)


def examined(crowd: Runner, folder: Path, allowed: str = "") -> set[str]:
    """Areas with a problem, of a ``deepinfer doctor`` that ends well: nobody named any of them, and cpu works."""
    variable = f"DEEPINFER_PLUGINS={allowed} " if allowed else ""
    out, err, status = crowd.run(f"{variable}deepinfer doctor --backend cpu --json", folder)
    checks = json.loads(out)["checks"]
    if (status, err) != (0, ""):
        raise AssertionError(f"{status} {err} {[item for item in checks if item['status'] == 'problem']}")
    if [item for item in checks if item["area"] == "backend:good_one" and item["status"] != "ok"]:
        raise AssertionError(out)
    return {item["area"] for item in checks if item["status"] == "problem"}


def test_doctor_goes_on_after_each_failure_and_ends_well(crowd: Runner, tmp_path: Path) -> None:
    allowed = "good_one,fake-squatter,exits,probe_crashes,old_api,half_sampler"
    wanted = {"backend:cpu", "backend:cuda", "backend:exits", "backend:probe_crashes", "backend:old_api"}
    assert examined(crowd, tmp_path, allowed) == wanted


@pytest.mark.slow
def test_doctor_names_every_faulty_plugin_and_ends_well(crowd: Runner, tmp_path: Path) -> None:
    problems = examined(crowd, tmp_path)
    listing = json.loads(crowd.run("deepinfer plugins --json", tmp_path)[0])["plugins"]
    faulty = {f"{p['kind']}:{p['name']}" for p in listing if p["state"] in ("invalid", "incompatible", "conflict")}
    assert faulty <= problems
    assert {"backend:lacks_library", "backend:exits", "backend:unknown_hook", "backend:probe_crashes"} <= problems
    assert not problems & {"core", "sampler:canonical", "model:deepseek_v41", "sampler:half_sampler"}


def test_unknown_backend_is_refused_with_the_names_of_all(crowd: Runner, tmp_path: Path) -> None:
    out, err, status = crowd.run("deepinfer generate --backend nope x", tmp_path)
    first, reason, remedy = err.splitlines()
    names = reason.removeprefix("  reason: installed backends: ").split(", ")
    assert (out, status, first) == ("", 3, "deepinfer: E_BACKEND_MISSING: no backend named 'nope'")
    assert {"cpu", "good_one", "good_two", "twin", "exits"} <= set(names)
    assert names == sorted(names)
    assert remedy.endswith("or pip install the plugin that provides 'nope'")


@pytest.mark.parametrize("order", ["good_one,good_two", pytest.param("good_two,good_one", marks=pytest.mark.slow)])
def test_automatic_choice_takes_the_same_of_two_and_says_why(crowd: Runner, tmp_path: Path, order: str) -> None:
    # Refused after the choice, so that nothing is computed.
    command = f"DEEPINFER_PLUGINS={order} deepinfer generate --device cuda:9 --max-model-len 1 x"
    _, err, _ = crowd.run(command, tmp_path)
    line = err.splitlines()[0]
    assert line.startswith("backend: good_one (auto: 2 usable of 2"), err
