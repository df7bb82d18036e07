"""One command for the first day: it goes on past what fails, ends what hangs, and leaves one file that says all."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from attrs import evolve

from deepinfer_ascend.first_day.golden import CLOSE, TOKENS, Outcome, recorded_cases
from deepinfer_ascend.first_day.on_device import attempt
from deepinfer_ascend.first_day.running import MOST_OUTPUT, run
from deepinfer_ascend.first_day.stages import NAMES, Options, Stage, stages
from deepinfer_ascend.first_day.vendors import compared, look_up

command = importlib.import_module("deepinfer_ascend.first_day.__main__")


def python(name, code, limit_s=60.0, **more):
    return Stage(name, "whatever", (sys.executable, "-c", code), limit_s, **more)


def test_it_goes_on_past_stages_that_fail_hang_or_cannot_start(tmp_path, monkeypatch, capsys):
    attached = tmp_path / "attached.json"
    made = (
        python("doctor", "import sys; print('told'); sys.exit('no device')"),
        python("device", "import time; print('begun', flush=True); time.sleep(99)", 1.0),
        Stage("vendors", "whatever", ("/no/such/program",), 5.0),
        python("plain", f"open({str(attached)!r}, 'w').write('[1]')", attached={"it": attached}),
    )
    monkeypatch.setattr(command, "stages", lambda options, folder: made)
    out = tmp_path / "report.json"
    assert command.main(["--out", str(out)]) == 1
    report = json.loads(out.read_text())
    assert [(s["name"], s["status"], s["exit_status"]) for s in report["stages"]] == [
        ("doctor", "failed", 1), ("device", "timed out", None), ("vendors", "failed", 127), ("plain", "passed", 0),
    ]  # fmt: skip
    assert report["summary"] == {"passed": 1, "failed": 2, "timed out": 1}
    assert [s["output"] for s in report["stages"][:2]] == ["told\nno device", "begun"]
    assert report["stages"][3]["attached"] == {"it": [1]}
    told = capsys.readouterr()
    assert told.out == f"{out}\n"
    assert "  failed after" in told.err
    assert "exit status 1: no device" in told.err


def test_the_report_has_versions_and_no_variable_of_others(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "stages", lambda options, folder: (python("plain", "pass"),))
    monkeypatch.setenv("SOME_TOKEN", "secret")
    monkeypatch.setenv("HCCL_BUFFSIZE", "16")
    out = tmp_path / "report.json"
    assert command.main(["--out", str(out), "--emulate"]) == 0
    report = json.loads(out.read_text())
    assert report["versions"]["deepinfer-ascend"] == "0.1.0"
    assert {"torch", "deepinfer-core"} <= report["versions"].keys()
    assert report["environment"]["HCCL_BUFFSIZE"] == "16"
    assert "secret" not in out.read_text()
    assert report["emulated"] is True


def test_what_was_known_is_written_when_it_is_interrupted(tmp_path, monkeypatch):
    made = (python("doctor", "pass"), python("device", "pass"))
    monkeypatch.setattr(command, "stages", lambda options, folder: made)
    done = []

    def interrupted(stage):
        done.append(stage)
        if len(done) == 2:
            raise KeyboardInterrupt
        return run(stage)

    monkeypatch.setattr(command, "run", interrupted)
    out = tmp_path / "report.json"
    assert command.main(["--out", str(out)]) == 130
    assert [s["name"] for s in json.loads(out.read_text())["stages"]] == ["doctor"]


def test_a_report_that_cannot_be_written_is_told_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "stages", lambda options, folder: (python("doctor", "pass"), python("device", "pass")))
    assert command.main(["--out", str(tmp_path / "no" / "such" / "folder.json")]) == 74


@pytest.mark.parametrize("wrong", [["--only", "nothing"], ["--emulate", "--device", "npu:1"], ["--level", "all"]])
def test_wrong_options_are_refused(wrong, capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(wrong)
    assert "error:" in capsys.readouterr().err


def test_output_is_kept_from_its_end():
    result = run(python("x", f"print('a' * {MOST_OUTPUT} + 'end')"))
    assert result.output.startswith("... 3 characters before")
    assert result.output.endswith("end")


def test_every_stage_runs_on_the_device_that_was_named():
    found = stages(Options(device="npu:1"), Path("/x"))
    assert tuple(stage.name for stage in found) == NAMES
    named = [stage.name for stage in found if "npu:1" in (*stage.command, *stage.environ.values())]
    assert named == ["device", "plain", "golden", "bench-prefill", "bench-decode"]


def test_a_rehearsal_says_of_each_stage_what_it_is(tmp_path, monkeypatch, capsys):
    made = [stage for stage in stages(Options(emulate=True), tmp_path) if stage.name == "doctor"]
    assert not any(stage.rehearsed for stage in stages(Options(), tmp_path))
    code = (sys.executable, "-c", "import sys; sys.exit('no device')")
    monkeypatch.setattr(command, "stages", lambda options, folder: [evolve(made[0], command=code, passing=(0,))])
    out = tmp_path / "report.json"
    assert command.main(["--out", str(out), "--emulate"]) == 1
    [told] = json.loads(out.read_text())["stages"]
    assert told["rehearsed"].startswith("it says what is lacking here")
    assert f"exit status 1: no device\n  emulated: {told['rehearsed']}\n" in capsys.readouterr().err


def test_a_library_that_is_not_here_is_missing_with_its_reason():
    found = look_up("deep_gemm.bf16_gemm_nt")
    assert (found.state, found.ops) == ("missing", ("gemm.dense",))
    assert "deep_gemm" in found.detail


@pytest.mark.parametrize(
    ("theirs", "detail"),
    [
        (lambda a, b, d, c=None, recipe=None, more=1: None, ""),
        (lambda a, b, d, *, c=None: None, "no option recipe"),
        (lambda a, b, c=None, *, recipe=None: None, ""),
        (lambda a, b, *, c=None, recipe=None: None, "2 arguments by place, 3 are passed: a, b, d"),
        (lambda *arguments, **options: None, ""),
    ],
)
def test_signatures_are_compared_as_calls_are_made(theirs, detail):
    assert compared(theirs, lambda a, b, d, c=None, *, recipe=None: None)[1] == detail


def test_what_is_tried_on_a_device_and_fails_does_not_end_the_rest():
    def breaks(backend):
        raise RuntimeError("NPU function error")

    assert attempt(breaks, None) == {"tried": "breaks", "state": "failed", "detail": "RuntimeError: NPU function error"}


def test_recorded_texts_count_up_to_a_close_call():
    text = {"id": "code", "ids": [0, 7]}
    for variant in ("kvq", "plain"):
        text[variant] = {"greedy": list(range(40)), "gaps": [1.0, 1.0, CLOSE / 2, *[1.0] * 37]}
    text["plain"]["gaps"] = [1.0] * 40
    kvq, plain = recorded_cases({"texts": [text]})
    assert (kvq.wanted, len(plain.wanted)) == ((0, 1), TOKENS)
    assert not Outcome("x", 2, 1).is_right


@pytest.mark.emulated
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_rehearsal_runs_every_stage(tmp_path):
    out = tmp_path / "report.json"
    command.main(["--emulate", "--level", "smoke", "--out", str(out)])
    found = {s["name"]: s for s in json.loads(out.read_text())["stages"]}
    assert tuple(found) == NAMES
    told = {name: s["output"][-2000:] for name, s in found.items() if s["status"] != "passed"}
    assert not told
    assert all(s["rehearsed"] for s in found.values())
    assert all(value is not None for s in found.values() for value in s["attached"].values())
