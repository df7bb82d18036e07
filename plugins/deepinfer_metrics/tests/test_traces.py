"""Spans as an exporter gets them."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core.errors import LibraryMissing
from deepinfer_metrics.traces import Traces


def test_request_has_a_span_with_one_for_each_phase(tmp_path: Path, make_step: Any, make_end: Any) -> None:
    pytest.importorskip("opentelemetry.sdk")
    path = tmp_path / "spans.jsonl"
    traces = Traces.open(str(path))
    traces.step(make_step("prefill", 0.5, forward=0.4))
    traces.ended(make_end())
    traces.ended(make_end("abort", None, None, None))
    traces.close()
    traces.close()
    spans = [json.loads(line) for line in path.read_text().splitlines()]
    names = [span["name"] for span in spans]
    assert names == ["di.step", "di.queue", "di.prefill", "di.decode", "di.request", "di.decode", "di.request"]
    assert spans[0]["attributes"] == {
        "di.phase.forward_s": 0.4,
        "di.kind": "prefill",
        "di.requests": 2,
        "di.rows": 3,
    }
    whole = spans[4]
    assert {span["parent_id"] for span in spans[1:4]} == {whole["context"]["span_id"]}
    assert spans[1]["start_time"] == whole["start_time"]
    assert spans[1]["end_time"] == spans[2]["start_time"]
    assert spans[3]["end_time"] == whole["end_time"]
    assert (whole["attributes"]["di.request_id"], whole["attributes"]["di.output_tokens"]) == ("r", 11)


def test_without_the_library_traces_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(LibraryMissing) as caught:
        Traces.open(str(tmp_path / "spans.jsonl"))
    assert caught.value.remedy == "pip install 'deepinfer-metrics[traces]', or leave --trace-file out"
    assert not (tmp_path / "spans.jsonl").exists()


def test_full_disk_is_told_once_and_without_a_traceback(
    capsys: pytest.CaptureFixture[str], make_step: Any, make_end: Any
) -> None:
    pytest.importorskip("opentelemetry.sdk")
    traces = Traces.open("/dev/full")
    for _ in range(3):
        traces.step(make_step("prefill", 0.5, forward=0.4))
        traces.ended(make_end())
    with suppress(OSError):  # of what the stream still held
        traces.close()
    told = capsys.readouterr().err
    assert told == "deepinfer: W_OBSERVER: cannot write /dev/full: No space left on device\n"
