"""The observer: hands what the core tells to the parts that were asked for.

A part that fails is dropped alone: a log that finds no room on its disk must not end metrics and health.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Protocol

from deepinfer_metrics.step_log import StepLog

if TYPE_CHECKING:
    from deepinfer_core.interfaces import EngineView
    from deepinfer_core.observation.settings import ObserveSettings
    from deepinfer_core.types import RequestReport, StepReport


class Part(Protocol):
    """One of them; the methods are those of ``deepinfer_core.interfaces.StepObserver``."""

    name: str
    """For the message that it failed."""

    def ready(self, engine: EngineView) -> None: ...
    def step(self, step: StepReport) -> None: ...
    def ended(self, request: RequestReport) -> None: ...
    def close(self) -> None: ...


class Observer:
    """Implements ``deepinfer_core.interfaces.StepObserver``."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts

    def ready(self, engine: EngineView) -> None:
        self._tell(lambda part: part.ready(engine))

    def step(self, step: StepReport) -> None:
        self._tell(lambda part: part.step(step))

    def ended(self, request: RequestReport) -> None:
        self._tell(lambda part: part.ended(request))

    def close(self) -> None:
        """Close all parts; one that fails is told, and keeps none of the others open. Idempotent."""
        for part in self.parts:
            try:
                part.close()
            except Exception as err:
                warnings.warn(f"W_OBSERVER: the end of {part.name} failed: {err}", stacklevel=2)

    def _tell(self, call: Callable[[Part], object]) -> None:
        for part in list(self.parts):
            try:
                call(part)
            except Exception as err:
                self.parts.remove(part)
                warnings.warn(f"W_OBSERVER: {part.name} failed and is off: {err}", stacklevel=3)
                with suppress(Exception):  # the same again, of what it still held
                    part.close()


def observer_of(settings: ObserveSettings, *, emulated: bool = False) -> Observer:
    """All parts that the settings want, started: what one of them cannot have is told now, and the others go again.

    :param emulated: The backend's own code runs on the processor; whatever is told of it says so.
    :raises ConfigError: the port or the address.
    :raises LibraryMissing: prometheus-client, or opentelemetry.
    :raises CommandUsageError: a file that cannot be written.
    """
    with ExitStack() as undo:
        parts: list[Part] = []
        if settings.step_log is not None:
            parts.append(StepLog.open(settings.step_log, settings.step_log_interval, emulated=emulated))
            undo.callback(parts[-1].close)
        if settings.trace_file is not None:
            from deepinfer_metrics.traces import Traces

            parts.append(Traces.open(settings.trace_file, emulated=emulated))
            undo.callback(parts[-1].close)
        if settings.metrics_port is not None:
            from deepinfer_metrics.serving import Serving

            where = (settings.metrics_host, settings.metrics_port)
            parts.append(Serving.start(*where, is_public=settings.metrics_public, emulated=emulated))
        undo.pop_all()
    return Observer(parts)
