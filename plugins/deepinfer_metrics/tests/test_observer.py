"""Parts side by side: one that fails, and the mark of an emulation."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from deepinfer_metrics.metrics import Metrics
from deepinfer_metrics.observer import Observer
from deepinfer_metrics.step_log import StepLog
from deepinfer_metrics.traces import Traces


def test_log_without_room_is_off_and_told_and_the_others_go_on(view: Any, make_step: Any, make_end: Any) -> None:
    good = io.StringIO()
    observer = Observer([StepLog.open("/dev/full", 2), StepLog(good, 2)])
    observer.ready(view)
    observer.step(make_step())
    with pytest.warns(
        UserWarning, match=r"^W_OBSERVER: step log /dev/full failed and is off: .* No space left"
    ) as told:
        observer.step(make_step())
    assert len(told) == 1
    for _ in range(4):
        observer.step(make_step())
    observer.ended(make_end())
    observer.close()
    observer.close()
    assert [json.loads(line)["steps"] for line in good.getvalue().splitlines()] == [2, 4, 6]


def test_log_without_room_at_its_end_is_told_by_its_name(view: Any, make_step: Any) -> None:
    observer = Observer([StepLog.open("/dev/full", 100)])
    observer.ready(view)
    for _ in range(2):
        observer.step(make_step())
    with pytest.warns(UserWarning, match="W_OBSERVER: the end of step log /dev/full failed"):
        observer.close()


def test_what_an_emulation_took_is_marked(tmp_path: Path, view: Any, make_step: Any, make_end: Any) -> None:
    stream = io.StringIO()
    log = StepLog(stream, 2, emulated=True)
    log.ready(view)
    for _ in range(2):
        log.step(make_step())
    assert json.loads(stream.getvalue())["emulated"] is True
    assert b'emulated="true"' in Metrics(emulated=True).text()
    assert b"emulated" not in Metrics().text()
    pytest.importorskip("opentelemetry.sdk")
    traces = Traces.open(str(tmp_path / "spans.jsonl"), emulated=True)
    traces.step(make_step())
    traces.ended(make_end())
    traces.close()
    spans = [json.loads(line) for line in (tmp_path / "spans.jsonl").read_text().splitlines()]
    marked = {span["name"] for span in spans if span["attributes"].get("di.emulated")}
    assert marked == {"di.step", "di.request"}
