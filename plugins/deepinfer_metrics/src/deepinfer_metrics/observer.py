"""The observer: hands what the core tells to the parts that were asked for."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

from deepinfer_metrics.step_log import StepLog

if TYPE_CHECKING:
    from deepinfer_core.interfaces import EngineView
    from deepinfer_core.observation.settings import ObserveSettings
    from deepinfer_core.types import RequestReport, StepReport


class Part(Protocol):
    """One of them; the methods are those of ``deepinfer_core.interfaces.StepObserver``."""

    def ready(self, engine: EngineView) -> None: ...
    def step(self, step: StepReport) -> None: ...
    def ended(self, request: RequestReport) -> None: ...
    def close(self) -> None: ...


class Observer:
    """Implements ``deepinfer_core.interfaces.StepObserver``."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts

    def ready(self, engine: EngineView) -> None:
        for part in self.parts:
            part.ready(engine)

    def step(self, step: StepReport) -> None:
        for part in self.parts:
            part.step(step)

    def ended(self, request: RequestReport) -> None:
        for part in self.parts:
            part.ended(request)

    def close(self) -> None:
        with ExitStack() as stack:  # one that fails keeps none of the others open
            for part in self.parts:
                stack.callback(part.close)


def observer_of(settings: ObserveSettings) -> Observer:
    """All parts that the settings want, started: what one of them cannot have is told now, and the others go again.

    :raises ConfigError: the port or the address.
    :raises LibraryMissing: prometheus-client, or opentelemetry.
    :raises CommandUsageError: a file that cannot be written.
    """
    with ExitStack() as undo:
        parts: list[Part] = []
        if settings.step_log is not None:
            parts.append(StepLog.open(settings.step_log, settings.step_log_interval))
            undo.callback(parts[-1].close)
        if settings.trace_file is not None:
            from deepinfer_metrics.traces import Traces

            parts.append(Traces.open(settings.trace_file))
            undo.callback(parts[-1].close)
        if settings.metrics_port is not None:
            from deepinfer_metrics.serving import Serving

            parts.append(Serving.start(settings.metrics_host, settings.metrics_port, is_public=settings.metrics_public))
        undo.pop_all()
    return Observer(parts)
