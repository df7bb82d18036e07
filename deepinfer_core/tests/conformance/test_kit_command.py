"""The kit as a person runs it: in a process of its own, in a folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core.conformance.kinds import KIT

KIT_NAME = "deepinfer_core.conformance"
MANIFEST = f"{KIT_NAME}.common.test_manifest"
OF_SAMPLER = (MANIFEST, "--sampler", "canonical")
SUMMARY = "common/test_manifest.py::test_manifest_says_in_words_what_the_plugin_is"


def run(
    folder: Path, *arguments: str, python: tuple[str, ...] = (), **environ: str
) -> subprocess.CompletedProcess[str]:
    """pytest with the kit's plugin and no other, in ``folder``."""
    plugin = ["-p", "deepinfer_core.conformance.pytest_plugin", "-p", "no:cacheprovider"]
    command = [sys.executable, *python, "-m", "pytest", "-q", *plugin, "--pyargs", *arguments]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environ}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False
    )


def report(folder: Path, *arguments: str, **options: Any) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    result = run(folder, *arguments, "--report", "report.json", **options)
    return json.loads((folder / "report.json").read_text(encoding="utf-8")), result


def test_no_plugin_named_is_a_usage_error(tmp_path: Path) -> None:
    result = run(tmp_path, KIT_NAME)
    assert result.returncode == 4
    assert result.stderr == (
        "ERROR: the conformance kit needs the name of a plugin: one of --backend, --model, --sampler, --logits-filter, "
        "--grammar, --scorer, --extension\n\n"
    )


def test_two_kinds_are_two_runs(tmp_path: Path) -> None:
    result = run(tmp_path, KIT_NAME, "--sampler", "canonical", "--backend", "cpu")
    assert result.returncode == 4
    assert result.stderr == (
        "ERROR: --backend and --sampler are two runs of the conformance kit, with a report each; give one of them\n\n"
    )


def test_unknown_plugin_is_refused_with_the_installed_ones(tmp_path: Path) -> None:
    result = run(tmp_path, KIT_NAME, "--sampler", "cannonical")
    assert result.returncode == 3
    assert "Exit: E_PLUGIN_MISSING: no sampler named 'cannonical'; did you mean 'canonical'?" in result.stderr
    assert "  reason: installed samplers: canonical" in result.stderr


def test_unknown_level_is_refused(tmp_path: Path) -> None:
    result = run(tmp_path, *OF_SAMPLER, "--level", "hard")
    assert result.returncode == 4
    assert "argument --level: invalid choice: 'hard' (choose from " in result.stderr


def test_options_of_another_kind_are_refused(tmp_path: Path) -> None:
    with_params = "--sampler or --logits-filter or --scorer"
    for option, value, wanted in (("checkpoint", ".", "--model"), ("params", "{}", with_params)):
        result = run(tmp_path, KIT_NAME, "--backend", "cpu", f"--{option}", value)
        expected = f"ERROR: --{option} goes with {wanted}, and not with --backend\n\n"
        assert (result.returncode, result.stderr) == (4, expected)


def test_checkpoint_that_is_not_there_is_refused_before_any_test(tmp_path: Path) -> None:
    result = run(tmp_path, KIT_NAME, "--model", "deepseek_v41", "--checkpoint", "absent")
    assert (result.returncode, result.stderr) == (
        4,
        "ERROR: --checkpoint absent: there is no config.json in it, so it is no checkpoint\n\n",
    )


def test_params_that_are_no_json_are_refused_before_any_test(tmp_path: Path) -> None:
    result = run(tmp_path, *OF_SAMPLER, "--params", "[1")
    assert result.returncode == 4
    assert result.stderr.startswith("ERROR: --params is not JSON: ")


def test_test_that_hangs_fails_at_the_time_limit(tmp_path: Path) -> None:
    """Half a millisecond is less than any test takes that makes a process of its own."""
    data, result = report(
        tmp_path, f"{KIT_NAME}.common.test_import", "--sampler", "canonical", "--time-limit", "0.0005"
    )
    assert result.returncode == 1
    [test] = data["tests"]
    assert test["typed"]
    assert test["reason"].startswith("the test does not come to an end\n")
    assert test["reason"].endswith("limit: 0.0005 s (--time-limit)")


def test_option_that_another_plugin_has_is_refused_by_name(tmp_path: Path) -> None:
    source = 'def pytest_addoption(parser):\n    parser.addoption("--backend")\n'
    (tmp_path / "acme_options.py").write_text(source, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    result = run(tmp_path, KIT_NAME, "-p", "acme_options", "--sampler", "canonical", PYTHONPATH=path)
    assert result.returncode == 4
    assert result.stderr == (
        "ERROR: the conformance kit needs the option --backend, which another pytest plugin has; "
        "switch that plugin off with -p no:NAME\n\n"
    )


def test_report_of_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    result = run(tmp_path, *OF_SAMPLER, "--report", "report.xml")
    assert (result.returncode, result.stderr) == (
        4,
        "ERROR: --report report.xml: the name must end in .json or .html\n\n",
    )
    result = run(tmp_path, *OF_SAMPLER, "--report", "absent/report.json")
    assert result.returncode == 4
    assert result.stderr == (
        "ERROR: --report absent/report.json: No such file or directory; give files in folders that exist\n\n"
    )


def test_options_are_not_there_without_the_kit(tmp_path: Path) -> None:
    """Another suite may have an option ``--backend`` of its own."""
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--backend', default='none')\n", encoding="utf-8"
    )
    (tmp_path / "test_own.py").write_text(
        "def test_own(pytestconfig):\n    if pytestconfig.getoption('backend') != 'theirs': raise ValueError\n",
        encoding="utf-8",
    )
    assert run(tmp_path, "test_own.py", "--backend", "theirs").returncode == 0
    assert "unrecognized arguments: --sampler" in run(tmp_path, "test_own.py", "--sampler", "x").stderr


@pytest.mark.parametrize("python", [(), ("-O",)], ids=["plain", "optimised"])
def test_part_of_the_kit_is_reported_as_partial(tmp_path: Path, python: tuple[str, ...]) -> None:
    data, result = report(tmp_path, *OF_SAMPLER, python=python)
    assert result.returncode == 0, result.stdout
    assert data["verdict"] == {
        "word": "partial",
        "text": "partial: only parts were asked for: common.test_manifest",
    }
    assert data["complete"] is True
    assert data["machine"]["optimised"] is bool(python)
    assert {test["outcome"] for test in data["tests"]} == {"passed"}
    assert data["subject"]["name"] == "canonical"
    _require_valid(data)


def test_report_in_another_project_does_not_bring_its_settings(tmp_path: Path) -> None:
    """The report is there when the workers start, and was not when the run began."""
    work, other = tmp_path / "work", tmp_path / "other"
    work.mkdir()
    other.mkdir()
    (other / "pyproject.toml").write_text("[tool.pytest.ini_options]\nstrict_config = true\nnot_an_option = 3\n")
    xdist = ("-p", "xdist", "-n", "1", *OF_SAMPLER)
    first = run(work, *xdist, "--report", str(other / "report.json"))
    assert first.returncode == 0, first.stdout + first.stderr
    settings = other / "pyproject.toml"
    settings.write_text("[tool.pytest.ini_options]\n")
    second = run(work, *OF_SAMPLER, "--report", str(other / "report.json"))
    assert second.returncode == 4
    assert second.stderr == (
        f"ERROR: pytest took the settings of {settings}, which is not above {work}: it takes the value of an option "
        "that is an existing path for a place of tests; write it with an equals sign, as --report=FILE\n\n"
    )
    third = run(work, *OF_SAMPLER, f"--report={other / 'report.json'}")
    assert third.returncode == 0, third.stdout + third.stderr


def test_deselected_tests_are_named(tmp_path: Path) -> None:
    data, _ = report(tmp_path, *OF_SAMPLER, "-k", "words")
    assert data["partial"][-1] == f"{len(data['left_out'])} tests deselected"
    assert SUMMARY not in data["left_out"]
    assert [test["test"] for test in data["tests"]] == [SUMMARY]


def test_path_into_the_kit_is_the_kit_too(tmp_path: Path) -> None:
    result = run(tmp_path, str(KIT / "common" / "test_manifest.py"), "--sampler", "canonical", "-c", os.devnull)
    assert result.returncode == 0, result.stdout + result.stderr


def test_known_failure_that_passes_fails(tmp_path: Path) -> None:
    _known(tmp_path, SUMMARY)
    data, result = report(tmp_path, *OF_SAMPLER)
    assert result.returncode == 1
    [failed] = [test for test in data["tests"] if test["outcome"] == "failed"]
    assert failed["test"] == SUMMARY
    assert failed["reason"] == "[XPASS(strict)] no words (https://example.org/1)"
    assert data["known_failures"] == [{"test": SUMMARY, "reason": "no words", "issue": "https://example.org/1"}]
    assert data["verdict"]["word"] == "failed"


def test_known_failure_of_no_test_is_an_error(tmp_path: Path) -> None:
    _known(tmp_path, "common/test_manifest.py::test_nothing")
    result = run(tmp_path, KIT_NAME, "--extension", "words", "--collect-only", PYTHONPATH=_extension(tmp_path))
    assert result.returncode == 4
    assert "ERROR: known failures name tests that do not exist: common/test_manifest.py::test_nothing" in result.stderr


def test_known_failure_of_no_test_is_an_error_side_by_side_too(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    _known(tmp_path, "common/test_manifest.py::test_nothing")
    path = _extension(tmp_path)
    data, result = report(tmp_path, KIT_NAME, "--extension", "words", "-p", "xdist", "-n", "2", PYTHONPATH=path)
    assert result.returncode == 4, result.stdout + result.stderr
    text = "failed: known failures name tests that do not exist: common/test_manifest.py::test_nothing"
    assert data["verdict"] == {"word": "failed", "text": text}
    assert text in result.stdout


def test_failing_plugin_has_its_known_failure_in_the_report(tmp_path: Path) -> None:
    path = _extension(tmp_path, summary="")
    data, result = report(tmp_path, MANIFEST, "--extension", "words", PYTHONPATH=path)
    assert result.returncode == 1
    [failed] = [test for test in data["tests"] if test["outcome"] == "failed"]
    assert (failed["test"], failed["reason"]) == (SUMMARY, "[[extension]] 'words' has no summary")
    _known(tmp_path, SUMMARY)
    data, result = report(tmp_path, MANIFEST, "--extension", "words", PYTHONPATH=path)
    assert result.returncode == 0
    assert [(t["test"], t["reason"]) for t in data["tests"] if t["outcome"] == "known failure"] == [
        (SUMMARY, "no words (https://example.org/1)")
    ]


def test_interrupted_run_leaves_an_incomplete_report(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "def pytest_runtest_call(item):\n    raise KeyboardInterrupt\n", encoding="utf-8"
    )
    data, result = report(tmp_path, *OF_SAMPLER, "--rootdir", str(tmp_path), "--confcutdir", str(tmp_path), "-c",
                          os.devnull, "-p", "conftest", PYTHONPATH=_with_path(tmp_path))  # fmt: skip
    assert result.returncode == 2
    assert data["complete"] is False
    assert data["verdict"]["word"] == "incomplete"


def test_reports_name_no_folder_and_both_forms_are_written(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    data, result = report(tmp_path, *OF_SAMPLER, "--report", "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert result.returncode == 0
    assert "Conformance of sampler <code>canonical</code>" in page
    assert data["verdict"]["text"] in page
    for text in (page, json.dumps(data)):
        assert str(tmp_path) not in text
        assert str(KIT) not in text
        assert os.uname().nodename not in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json"]


def _known(folder: Path, test: str) -> None:
    entry = f'[[known_failure]]\ntest = "{test}"\nreason = "no words"\nissue = "https://example.org/1"\n'
    (folder / "conformance.toml").write_text(entry, encoding="utf-8")


def _extension(folder: Path, summary: str = "counts words") -> str:
    """A distribution with the extension ``words``; the import path that has it."""
    site = folder / "site"
    package = site / "acme_words"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "plugin.py").write_text(
        "from deepinfer_core import hookimpl\n\n\n@hookimpl\ndef deepinfer_doctor_checks(host): return []\n",
        encoding="utf-8",
    )
    told = f'summary = "{summary}"\n' if summary else ""
    (package / "deepinfer.toml").write_text(
        f'schema = 1\napi = ">=1.0,<2"\n[[extension]]\nname = "words"\n{told}', encoding="utf-8"
    )
    info = site / "acme_words-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-words\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(
        "[deepinfer.manifest]\nacme-words = acme_words:deepinfer.toml\n"
        "[deepinfer.extensions]\nwords = acme_words.plugin\n",
        encoding="utf-8",
    )
    return _with_path(site)


def _with_path(folder: Path) -> str:
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH", "")])])


def _require_valid(data: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(data, json.loads((KIT / "report.schema.json").read_text(encoding="utf-8")))
