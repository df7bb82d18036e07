"""Lines of the step log."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core.errors import OutputError
from deepinfer_metrics.step_log import StepLog


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_line_every_interval_and_one_for_the_rest(view: Any, make_step: Any) -> None:
    stream = io.StringIO()
    log = StepLog(stream, 4)
    log.ready(view)
    for number in range(10):
        view.stats.tokens_output += 2
        log.step(make_step(forward=0.001 * number))
        assert len(lines(stream)) == (number + 1) // 4
    log.close()
    log.close()
    found = lines(stream)
    assert [line["steps"] for line in found] == [4, 8, 10]
    # The first step only opens the window.
    assert [line["window_steps"] for line in found] == [3, 4, 2]
    assert [line["output_tokens"] for line in found] == [6, 8, 4]
    assert [line["phase_us"]["forward"] for line in found] == [2000.0, 5500.0, 8500.0]
    assert found[0]["blocks"] == {"total": 8, "free": 6, "cached": 1}


def test_one_step_gives_no_line(view: Any, make_step: Any) -> None:
    stream = io.StringIO()
    log = StepLog(stream, 1000)
    log.ready(view)
    log.step(make_step())
    log.close()
    assert stream.getvalue() == ""


def test_file_is_appended_to(tmp_path: Path, view: Any, make_step: Any) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text("{}\n")
    log = StepLog.open(str(path), 1)
    log.ready(view)
    for _ in range(3):
        log.step(make_step())
    log.close()
    assert len(path.read_text().splitlines()) == 3


def test_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot write"):
        StepLog.open(str(tmp_path), 100)
