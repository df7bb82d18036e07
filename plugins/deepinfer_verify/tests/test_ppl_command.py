"""``deepinfer ppl`` on the shipped checkpoint: the baselines of this repository, and what goes wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deepinfer_core import cli
from deepinfer_verify.plugin import deepinfer_cli_commands
from deepinfer_verify.ppl.storage import read_baseline

BASELINES = Path(__file__).parents[1] / "baselines" / "cpu.json"
TINY = """\
text = "text.txt"
samples = 2
prompt_tokens = 5
new_tokens = 6
draft_tokens = 2
arithmetic = "exact"
"""


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    """A workload of one second."""
    (tmp_path / "text.txt").write_text("import os\n\n\ndef main(args):\n    return os.path.join(*args)\n\n\nmain([])\n")
    (tmp_path / "tiny.toml").write_text(TINY)
    return str(tmp_path / "tiny.toml")


@pytest.fixture
def made(tmp_path: Path, tiny: str, capsys: pytest.CaptureFixture[str]) -> Path:
    """A file of baselines with the tiny workload of this machine."""
    path = tmp_path / "b.json"
    assert run(path, tiny, "--update") == 0
    capsys.readouterr()
    return path


def run(path: Path, workload: str, *options: str) -> int:
    return cli.main(["ppl", "--backend", "cpu", "--baseline", str(path), "--workload", workload, *options])


@pytest.mark.timeout(400)
@pytest.mark.parametrize("workload", ["short", "released", "long"])
def test_golden_baselines_of_this_repository_hold(capsys, workload):
    """Bit by bit on a machine of their key; on others exact arithmetic within 1e-6."""
    status = run(BASELINES, workload)
    assert status == 0, capsys.readouterr().out


def test_baselines_of_this_repository_cover_every_workload_with_drafts_taken_and_taken_back():
    entries = read_baseline(BASELINES)
    assert {entry.workload["name"] for entry in entries.values()} == {"long", "released", "short"}
    for entry in entries.values():
        for sample in entry.samples:
            assert 0 < sum(sample.accepted) < sum(sample.verified)
            assert len(sample.logprobs) == entry.workload["out"] - 1


def test_second_run_is_equal_and_an_update_of_it_writes_nothing(made, tiny, capsys):
    before = (made.read_bytes(), made.stat().st_mtime_ns)
    assert run(made, tiny, "--require") == 0
    out = capsys.readouterr().out
    assert out.startswith("tiny: perplexity ")
    assert "equal, bit by bit: cpu-" in out
    assert run(made, tiny, "--update", "--json") == 0
    [data] = json.loads(capsys.readouterr().out)["workloads"]
    assert (data["verdict"], data["written"]) == ("equal", "unchanged")
    assert (made.read_bytes(), made.stat().st_mtime_ns) == before


def test_drafts_change_no_log_probability(made, tiny):
    """A row that verifies a draft has the bits of a row that decodes alone."""
    path = Path(tiny).with_name("alone.toml")
    path.write_text(TINY.replace("draft_tokens = 2", "draft_tokens = 0"))
    assert run(made, str(path), "--update") == 0
    drafted, alone = (
        next(entry for entry in read_baseline(made).values() if entry.workload["name"] == name)
        for name in ("tiny", "alone")
    )
    assert [sample.logprobs for sample in alone.samples] == [sample.logprobs for sample in drafted.samples]
    assert [sum(sample.verified) > 0 for entry in (drafted, alone) for sample in entry.samples] == [True] * 2 + [
        False
    ] * 2


def test_change_of_a_decode_kernel_is_found(made, tiny, capsys, monkeypatch):
    from deepinfer_cpu import backend

    ops = dict(backend.OPS)
    right = ops["attn.sparse_decode"]

    def wrong(*args, **kwargs):
        out, *rest = right(*args, **kwargs)
        return (out * (1 + 2**-18), *rest)

    ops["attn.sparse_decode"] = wrong
    monkeypatch.setattr(backend, "OPS", ops)
    assert run(made, tiny, "--json") == 5
    [data] = json.loads(capsys.readouterr().out)["workloads"]
    assert (data["verdict"], data["tolerance"]) == ("different", 0.0)
    assert [item["sample"] for item in data["differences"]] == ["tiny-0", "tiny-1"]
    assert all(item["ulps"] > 0 and item["token"] is not None for item in data["differences"])


def test_number_of_threads_and_settings_of_others_change_nothing(made, tiny, capsys, monkeypatch):
    monkeypatch.setenv("DEEPINFER_DRAFT_TOKENS", "1")
    monkeypatch.setenv("DEEPINFER_MAX_CHUNK", "3")
    assert run(made, tiny, "--num-threads", "2") == 0
    err = capsys.readouterr().err
    assert "deepinfer: setting draft_tokens is not used: this comparison has its own\n" in err
    assert "deepinfer: setting max_chunk is not used" in err


def test_other_machine_is_compared_within_the_tolerance_and_required_entries_fail(made, tiny, capsys):
    text = made.read_text()
    made.write_text(text.replace('"cpu-', '"cpu-elsewhere-'))
    assert run(made, tiny) == 0
    assert "\n  within 1e-06 (largest 0): cpu-elsewhere-" in capsys.readouterr().out
    assert run(made, tiny, "--require") == 5
    assert "make it with --update" in capsys.readouterr().err


def test_other_instructions_of_this_processor_are_another_machine_within_the_tolerance(made, tiny):
    """For real: torch's plain code in place of its vector code."""
    command = [sys.executable, "-m", "deepinfer_core.cli", "ppl", "--backend", "cpu", "--baseline", str(made)]
    done = subprocess.run(
        [*command, "--workload", tiny],
        env={**os.environ, "ATEN_CPU_CAPABILITY": "default"},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("within 1e-06" in done.stdout) or ("equal, bit by bit" in done.stdout)


def test_update_that_changes_numbers_needs_a_reason(made, tiny, capsys):
    text = made.read_text()
    changed = text.replace('"ppl_hex": "0x1.', '"ppl_hex": "0x1.1', 1)
    made.write_text(changed)
    assert run(made, tiny) == 5
    assert "perplexity 0x" in capsys.readouterr().out
    assert run(made, tiny, "--update") == 2
    assert 'remedy: say why with --reason "...", which is kept in the file' in capsys.readouterr().err
    assert made.read_text() == changed
    assert run(made, tiny, "--update", "--reason", "a test") == 0
    assert json.loads(made.read_text())["entries"] != json.loads(changed)["entries"]
    assert made.read_text().replace('"reason": "a test"', '"reason": "first"') == text


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "E_BASELINE: there is no file of baselines"),
        ("{", "E_BASELINE: {path} is no file of baselines: it is no JSON"),
        ('{"version": 7, "entries": {}}', "E_BASELINE: {path} is of version 7"),
    ],
)
def test_file_that_cannot_be_used_is_an_error_before_anything_runs(tmp_path, capsys, monkeypatch, content, what):
    from deepinfer_verify.ppl import command

    monkeypatch.setattr(command, "load_llm", lambda *args: pytest.fail("a model was loaded"))
    path = tmp_path / "b.json"
    if content is not None:
        path.write_text(content)
        assert run(path, "short", "--update", "--reason", "x") == 2
        capsys.readouterr()
    assert run(path, "short") == 2
    assert capsys.readouterr().err.startswith(f"deepinfer: {what.format(path=path)}")
    assert (path.read_text() if path.exists() else None) == content


def test_usage_is_refused_before_anything_runs(tmp_path, capsys):
    assert run(tmp_path / "b.json", "nope", "--update") == 2
    assert "no workload named 'nope'" in capsys.readouterr().err
    assert run(tmp_path / "b.json", "short", "--reason", "x") == 2
    assert "--reason is for --update" in capsys.readouterr().err
    assert run(tmp_path / "b.json", "short", "--require", "--update") == 2
    assert "--require and --update exclude each other" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_other_checkpoint_is_an_error_and_no_difference(made, tiny, capsys, tmp_path):
    from deepinfer_v41 import checkpoint_command

    shipped = Path(checkpoint_command.__file__).parent / "checkpoints" / "v41-tiny"
    other = tmp_path / "model"
    shutil.copytree(shipped, other)
    (other / "generation_config.json").write_text("{}")
    assert run(made, tiny, "--model", str(other)) == 2
    assert "E_BASELINE: entry cpu-" in capsys.readouterr().err


def test_workload_longer_than_the_model_is_refused(made, tiny, capsys, tmp_path):
    Path(tiny).write_text(TINY.replace("prompt_tokens = 5", "prompt_tokens = 2043"))
    assert run(made, tiny) == 2
    assert capsys.readouterr().err.endswith(
        "deepinfer: E_CAPACITY: workload tiny has sequences of 2,049 tokens\n"
        "  reason: the model's longest sequence is 2,048\n"
        "  remedy: give a shorter workload with --workload\n"
    )


def test_killed_update_leaves_the_file_as_it_was(made, tiny):
    """SIGKILL at several moments of a whole command: while torch loads, while it decodes, and near the write."""
    before = made.read_bytes()
    command = [sys.executable, "-m", "deepinfer_core.cli", "ppl", "--backend", "cpu", "--baseline", str(made)]
    for seconds in (0.3, 1.5, 3.0):
        process = subprocess.Popen(
            [*command, "--workload", "short", "--update"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(seconds)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=60)
        after = read_baseline(made)
        assert set(after) >= set(json.loads(before)["entries"])
        assert len(after) == 1 or made.read_bytes() != before  # a fast machine was done
        assert not list(made.parent.glob(".b.json.*.part"))


def test_manifest_and_hook_declare_the_same_commands():
    toml = (Path(__file__).parents[1] / "src" / "deepinfer_verify" / "deepinfer.toml").read_text("utf-8")
    for spec in deepinfer_cli_commands():
        assert f'{{ name = "{spec.name}", summary = "{spec.help}" }}' in toml


def test_paths_that_lead_nowhere_are_told_as_any_other(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    assert run("one", "short") == 2
    assert "E_BASELINE: cannot read the file of baselines" in capsys.readouterr().err
    assert run("~nobody-has-this-name/b.json", "short") == 2
    assert "E_BASELINE: there is no file of baselines" in capsys.readouterr().err
