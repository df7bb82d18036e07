"""An engine that is watched, from the command line and from Python: same tokens, right numbers, clear refusals."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from deepinfer_core.cli import main
from deepinfer_core.errors import ConfigError, LibraryMissing

PROMPTS = ["import os", "def f("]


def read(port: int, path: str) -> str:
    with urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def serving_of(llm: Any) -> Any:
    [observer] = llm.assembly.observers
    return observer.parts[-1]


def test_watched_engine_gives_the_same_tokens_and_counts_them(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from deepinfer_core import LLM, SamplingParams

    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    with LLM(backend="cpu") as plain:
        want = [output.token_ids for output in plain.generate(PROMPTS, params)]
        assert plain.assembly.observers == ()
    steps = tmp_path / "steps.jsonl"
    wanted = {"observe.metrics_port": 0, "observe.step_log": str(steps), "observe.step_log_interval": 2}
    with LLM(backend="cpu", **wanted) as llm:
        port = serving_of(llm).server.port
        assert [output.token_ids for output in llm.generate(PROMPTS, params)] == want
        text = read(port, "/metrics")
        assert json.loads(read(port, "/ready")) == {"ok": True, "wrong": []}
    for line in (
        'di_tokens_total{kind="decode"} 14.0',
        'di_requests_finished_total{reason="length"} 2.0',
        "di_ttft_seconds_count 2.0",
        "di_leak 0.0",
        'di_requests{phase="running"} 0.0',
    ):
        assert f"\n{line}\n" in text
    last = json.loads(steps.read_text().splitlines()[-1])
    assert last["steps"] == 8
    with pytest.raises(OSError, match="refused"):
        read(port, "/metrics")


@pytest.fixture
def taken() -> Any:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        yield held.getsockname()[1]


def test_port_that_is_taken_stops_the_command_before_a_model_is_read(
    taken: int, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = ("--metrics-port", str(taken), "--model", str(tmp_path), "--step-log", str(tmp_path / "steps.jsonl"))
    assert main(["generate", *options, "x"]) == 2
    assert capsys.readouterr().err == (
        f"deepinfer: E_CONFIG: cannot listen on 127.0.0.1:{taken}\n"
        "  reason: Address already in use\n"
        "  remedy: choose another --metrics-port, or 0 for one that is free\n"
    )


def test_address_that_others_reach_stops_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--metrics-port", "0", "--metrics-host", "0.0.0.0", "x"]) == 2
    assert "E_CONFIG: 0.0.0.0 can be reached by other machines" in capsys.readouterr().err


def test_failed_start_gives_the_port_back(tmp_path: Path) -> None:
    from deepinfer_core import LLM
    from deepinfer_core.errors import ModelNotFound

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for _ in range(2):
        with pytest.raises(ModelNotFound):
            LLM(str(tmp_path / "none"), backend="cpu", **{"observe.metrics_port": port})


def test_missing_library_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from deepinfer_core.config import EngineConfig
    from deepinfer_metrics.plugin import deepinfer_step_observer

    monkeypatch.setitem(sys.modules, "deepinfer_metrics.metrics", None)
    given = {"observe.metrics_port": 0, "observe.step_log": str(tmp_path / "a" / "steps.jsonl")}
    config = EngineConfig.resolve({"observe.metrics_port": 0}, environ={}, flag_origin="argument")
    with pytest.raises(LibraryMissing, match="prometheus-client"):
        deepinfer_step_observer(config)
    monkeypatch.undo()
    with pytest.raises(Exception, match="cannot write"):
        deepinfer_step_observer(EngineConfig.resolve(given, environ={}, flag_origin="argument"))


def test_settings_that_want_nothing_make_no_observer() -> None:
    from deepinfer_core.config import EngineConfig
    from deepinfer_metrics.plugin import deepinfer_step_observer

    standing = {"DEEPINFER_LOGGING_INTERVAL_STEP": "5"}  # of the environment: there for every run
    assert deepinfer_step_observer(EngineConfig.resolve({}, environ=standing, flag_origin="argument")) is None
    with pytest.raises(ConfigError):
        EngineConfig.resolve({"observe.metrics_port": 70000}, environ={}, flag_origin="argument")


def test_full_disk_of_a_step_log_changes_neither_the_answer_nor_the_exit_status(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    options = ["--backend", "cpu", "--max-tokens", "3", "--temperature", "0"]
    assert main(["generate", *options, "import os"]) == 0
    want = capsys.readouterr().out
    logged = ["--step-log", "/dev/full", "--step-log-interval", "1"]
    assert main(["generate", *options, *logged, "import os"]) == 0
    captured = capsys.readouterr()
    assert captured.out == want
    assert captured.err.count("W_OBSERVER: step log /dev/full failed and is off: ") == 1
    assert captured.err.count("W_OBSERVER") == 1


def test_part_that_cannot_be_closed_keeps_none_of_the_others_open() -> None:
    from deepinfer_metrics.observer import Observer

    closed: list[str] = []

    class Part:
        def __init__(self, name: str) -> None:
            self.name = name

        def close(self) -> None:
            closed.append(self.name)
            raise OSError(self.name)

    parts: Any = [Part("a"), Part("b")]
    with pytest.warns(UserWarning, match="W_OBSERVER: the end of [ab] failed") as told:
        Observer(parts).close()
    assert sorted(closed) == ["a", "b"]
    assert len(told) == 2
