"""A JSON line every so many steps, and one at the end: what a program can read of a run without a scraper.

Rates are over the time since the line before; the first step only opens that window (``spec/engine.md`` 9.3).
"""

from __future__ import annotations

import json
import sys
import time
from typing import IO, TYPE_CHECKING, Any, Self

from deepinfer_core.errors import OutputError

if TYPE_CHECKING:
    from deepinfer_core.interfaces import EngineView
    from deepinfer_core.types import EngineSnapshot, RequestReport, StepReport


class StepLog:
    """A part of the observer.

    :param stream: Where lines go; flushed after each.
    :param interval: Steps between two lines.
    """

    def __init__(self, stream: IO[str], interval: int, *, owns: bool = False, emulated: bool = False) -> None:
        self.name = f"step log {getattr(stream, 'name', '')}".rstrip()
        self._mark: dict[str, Any] = {"emulated": True} if emulated else {}
        self._stream = stream
        self._interval = interval
        self._owns = owns
        self._steps = 0
        self._since = 0
        self._opened = 0.0
        self._output = 0
        self._phases: dict[str, float] = {}
        self._engine: EngineView | None = None

    @classmethod
    def open(cls, path: str, interval: int, *, emulated: bool = False) -> Self:
        """Append to the file at ``path``, ``-`` for standard error. Raises OutputError."""
        if path == "-":
            return cls(sys.stderr, interval, emulated=emulated)
        try:
            return cls(open(path, "a", encoding="utf-8"), interval, owns=True, emulated=emulated)
        except OSError as err:
            raise OutputError(
                f"cannot write {path}",
                reason=err.strerror or str(err),
                remedy="check --step-log",
                details={"path": path},
            ) from err

    def ready(self, engine: EngineView) -> None:
        self._engine = engine

    def ended(self, request: RequestReport) -> None:
        """Requests are no part of a line."""

    def step(self, step: StepReport) -> None:
        engine = self._engine
        if engine is None:
            return
        self._steps += 1
        if not self._opened:
            self._open_window(engine.snapshot())
            return
        self._since += 1
        for name, seconds in step.phases.items():
            self._phases[name] = self._phases.get(name, 0.0) + seconds
        if self._steps % self._interval == 0:
            snapshot = engine.snapshot()
            self._write(snapshot)
            self._open_window(snapshot)

    def close(self) -> None:
        """Write what is left, and close the file. Idempotent."""
        engine, self._engine = self._engine, None
        try:
            if engine is not None and self._since:
                self._write(engine.snapshot())
        finally:
            if self._owns:
                self._stream.close()

    def _open_window(self, snapshot: EngineSnapshot) -> None:
        self._opened = time.perf_counter()
        self._since = 0
        self._output = snapshot.stats.tokens_output
        self._phases = {}

    def _write(self, snapshot: EngineSnapshot) -> None:
        stats, seconds = snapshot.stats, time.perf_counter() - self._opened
        tokens = stats.tokens_output - self._output
        record: dict[str, Any] = {
            "time": round(time.time(), 3),
            "steps": self._steps,
            "window_steps": self._since,
            "window_s": round(seconds, 6),
            "output_tokens": tokens,
            "tokens_per_s": round(tokens / seconds, 3) if seconds > 0 else None,
            "steps_per_s": round(self._since / seconds, 3) if seconds > 0 else None,
            "waiting": stats.waiting,
            "prefill": stats.prefill,
            "running": stats.running,
            "blocks": {"total": stats.main.total, "free": stats.main.free, "cached": stats.main.cached},
            "preemptions": stats.preemptions,
            "phase_us": {name: round(value / self._since * 1e6, 1) for name, value in self._phases.items() if value},
        }
        record |= self._mark
        drafts = snapshot.drafts
        if drafts.verified:
            record["drafts"] = {"verified": list(drafts.verified), "accepted": list(drafts.accepted)}
        self._stream.write(json.dumps(record) + "\n")
        self._stream.flush()
