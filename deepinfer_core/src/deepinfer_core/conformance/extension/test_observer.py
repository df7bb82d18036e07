"""What an observer of steps keeps to (``interfaces.StepObserver``), whatever it makes of what it sees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deepinfer_core.config import EngineConfig
from deepinfer_core.conformance.failures import require, require_equal
from deepinfer_core.conformance.part import settings
from deepinfer_core.interfaces import StepObserver
from deepinfer_core.plugins.hooks import Hooks
from deepinfer_core.plugins.manager import PluginManager
from deepinfer_core.types import EngineSnapshot, RequestReport, StepReport

pytestmark = pytest.mark.hook("deepinfer_step_observer")

DRAFTS = SimpleNamespace(verified=(), accepted=(), confidence_error=None)
POOL = SimpleNamespace(total=8, free=6, cached=1, held=1, limbo=0)


class Counters:
    """Those of a core: pools, and numbers under every other name."""

    main = swa = state = draft = POOL
    finished: dict[int, int] = {}  # noqa: RUF012

    def __getattr__(self, name: str) -> int:
        if name.startswith("__"):
            raise AttributeError(name)
        return 3


class View:
    """An ``EngineView`` of an engine in the middle of its work."""

    depth, num_live, num_in_flight = 2, 3, 1
    in_flight_s, progress_age_s, fault = 0.01, 0.01, ""

    def snapshot(self) -> EngineSnapshot:
        return EngineSnapshot(Counters(), DRAFTS, "", 1)


def step(kind: str = "decode", seconds: float = 0.01) -> StepReport:
    return StepReport(kind, 3, 5, seconds, {"forward": seconds, "wait": 0.0})


def request(reason: str = "stop", tokens: int = 4) -> RequestReport:
    queue_s, ttft_s, itl_s = (0.1, 0.2, 0.01) if tokens > 1 else (None, None, None)
    return RequestReport("7", 0, reason, 5, 0, tokens, queue_s, ttft_s, itl_s, 0.3)


@pytest.fixture(params=["off", "on"])
def wanted(request: pytest.FixtureRequest, subject: Any, tmp_path: Path) -> EngineConfig:
    """The default settings, and some of ``[observe]``."""
    given: dict[str, Any] = {"plugins.enable": [subject.name]}
    if request.param == "on":
        given |= {"observe.metrics_port": 0, "observe.step_log": str(tmp_path / "steps.jsonl")}
    return settings(**given)


@pytest.fixture
def observers(manager: PluginManager, subject: Any, wanted: EngineConfig) -> Iterator[tuple[StepObserver, ...]]:
    """What the extension makes of the settings; skipped where it does not implement the hook."""
    record = subject.record
    if manager.hook(record, "deepinfer_step_observer") is None:
        pytest.skip("not offered: deepinfer_step_observer")
    made = Hooks(manager).step_observers([record], wanted)
    yield made
    for observer in made:
        observer.close()


@pytest.mark.level("smoke")
def test_observer_sees_a_run(observers: tuple[StepObserver, ...]) -> None:
    for observer in observers:
        require(isinstance(observer, StepObserver), "it is no StepObserver", got=type(observer).__name__)
        observer.ready(View())
        for kind in ("prefill", "decode", "decode"):
            observer.step(step(kind))
        observer.ended(request())
        observer.close()


@pytest.mark.level("core")
def test_observer_takes_any_step_and_any_end(observers: tuple[StepObserver, ...]) -> None:
    """A run that fails in its first step, requests that end in the queue, reasons that are new."""
    for observer in observers:
        observer.ready(View())
        for reason in ("abort", "engine", "too_long", "a reason of the next release"):
            observer.ended(request(reason, tokens=0))
        for seconds in (0.0, 1e-9, 3600.0):
            observer.step(step(seconds=seconds))


@pytest.mark.level("core")
def test_observer_changes_nothing_that_it_is_told(observers: tuple[StepObserver, ...]) -> None:
    for observer in observers:
        observer.ready(View())
        told = step()
        before = dict(told.phases)
        observer.step(told)
        require_equal(dict(told.phases), before, "it changed the phases of a step")


@pytest.mark.level("core")
def test_close_may_come_at_any_time_and_again(observers: tuple[StepObserver, ...]) -> None:
    """Also where the start failed, so that no engine ever was ready."""
    for observer in observers:
        observer.close()
        observer.close()


@pytest.mark.level("core")
def test_two_engines_have_observers_of_their_own(
    manager: PluginManager, subject: Any, wanted: EngineConfig, observers: Any
) -> None:
    others = Hooks(manager).step_observers([subject.record], wanted)
    try:
        require(not set(map(id, others)) & set(map(id, observers)), "two engines share an observer")
    finally:
        for observer in others:
            observer.close()
