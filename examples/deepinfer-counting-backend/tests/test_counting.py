import inspect
import json
from pathlib import Path

import pytest
from deepinfer_core import LLM, SamplingParams
from deepinfer_core.errors import InvalidInputFile, OutputError

from deepinfer_counting_backend.counts import OpCount, counted
from deepinfer_counting_backend.plugin import deepinfer_doctor_checks
from deepinfer_counting_backend.report import VARIABLE, as_table, read_report, write_report

GREEDY = SamplingParams(max_tokens=3, temperature=0)


def test_generate_counts_the_ops_and_gives_the_tokens_of_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "report.json"))
    with LLM(backend="cpu") as llm:
        [expected] = llm.generate("import os", GREEDY)
    assert not (tmp_path / "report.json").exists()
    with LLM(backend="counting") as llm:
        [result] = llm.generate("import os", GREEDY)
        plan = dict(llm.assembly.backend.plan)
    assert result.token_ids == expected.token_ids
    assert set(plan.values()) == {"deepinfer-counting-backend"}
    counts = read_report(tmp_path / "report.json")
    assert {count.provider for count in counts.values()} == {"deepinfer-cpu"}
    assert counts["norm.rms"].calls > 0
    assert counts["transform.hadamard"].calls == 0
    assert set(counts) == set(plan)


def test_without_the_variable_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    with LLM(backend="counting"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_counted_keeps_signature_and_result_and_counts_failures() -> None:
    def op(x: int, *, scale: int = 2) -> float:
        return scale / x

    count = OpCount("acme")
    call = counted(op, count)
    assert inspect.signature(call) == inspect.signature(op)
    assert call(2) == 1.0
    with pytest.raises(ZeroDivisionError):
        call(0)
    assert count.calls == 2
    assert count.seconds > 0


def test_report_survives_the_file_and_shows_the_slowest_first(tmp_path: Path) -> None:
    counts = {"a.a": OpCount("x", 2, 0.001), "b.b": OpCount("y", 1, 0.0205), "c.c": OpCount("x")}
    write_report(tmp_path / "r", "counting", counts)
    assert read_report(tmp_path / "r") == counts
    assert as_table(counts) == (
        "OP   CALLS  MILLISECONDS  PROVIDER\n"
        "b.b      1          20.5  y\n"
        "a.a      2           1.0  x\n"
        "2 of 3 ops were called"
    )


@pytest.mark.parametrize("text", ["", "[]", '{"ops": 1}', '{"ops": {"a": {}}}', None])
def test_read_report_refuses_what_is_none(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "r").write_text(text)
    with pytest.raises(InvalidInputFile, match="is no report of backend counting"):
        read_report(tmp_path / "r")


def test_write_report_into_a_missing_folder_says_which_variable(tmp_path: Path) -> None:
    with pytest.raises(OutputError) as caught:
        write_report(tmp_path / "none" / "r", "counting", {})
    assert caught.value.remedy == f"change {VARIABLE}, or unset it"


def test_doctor_says_where_the_report_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert [check.status for check in deepinfer_doctor_checks()] == ["note"]
    monkeypatch.setenv(VARIABLE, str(tmp_path / "r"))
    assert [check.status for check in deepinfer_doctor_checks()] == ["ok"]
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none" / "r"))
    assert [check.status for check in deepinfer_doctor_checks()] == ["problem"]


def test_command_shows_the_report(tmp_path: Path) -> None:
    from click.testing import CliRunner
    from deepinfer_core.commands import CommandState

    from deepinfer_counting_backend.command import op_calls

    write_report(tmp_path / "r", "counting", {"a.a": OpCount("x", 2, 0.001)})
    shown = CliRunner().invoke(op_calls, [str(tmp_path / "r")], obj=CommandState())
    assert shown.stdout.endswith("1 of 1 ops were called\n")
    data = CliRunner().invoke(op_calls, [str(tmp_path / "r"), "--json"], obj=CommandState())
    assert json.loads(data.stdout) == {"a.a": {"provider": "x", "calls": 2, "seconds": 0.001}}
