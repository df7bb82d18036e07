"""What happens beside the steps: garbage collections, and who else would be told of here.

An interval that meets one of them is dropped and counted, never smoothed (``spec/engine.md`` 9.4). The method names two
more kinds: a flush of expert statistics, and a shuffle of experts. This engine keeps no such statistics and moves no
expert, so nothing notes them and their counts are zero; what does either later notes it with :meth:`Disturbances.note`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from attrs import define, field, frozen

GC, FLUSH, SHUFFLE = "gc", "flush", "shuffle"
KINDS = (GC, FLUSH, SHUFFLE)
COLLECT_EVERY = 1000
"""Steps between two collections (``spec/engine.md`` 9.4)."""

Clock = Callable[[], int]


@frozen
class Disturbance:
    """One event, from ``begin_ns`` to ``end_ns`` on the clock of the steps."""

    kind: str
    begin_ns: int
    end_ns: int


@define
class Disturbances:
    """All events since the start, in the order of their ends."""

    events: list[Disturbance] = field(factory=list)

    def note(self, kind: str, begin_ns: int, end_ns: int) -> None:
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is none of {', '.join(KINDS)}")
        self.events.append(Disturbance(kind, begin_ns, end_ns))

    def meeting(self, begin_ns: int, end_ns: int) -> str | None:
        """The kind of the first event that shares time with an interval; None: there is none."""
        for event in self.events:
            if event.begin_ns < end_ns and event.end_ns > begin_ns:
                return event.kind
        return None


class Collections:
    """Context manager: notes each garbage collection of this process in ``log``, and says when they happen.

    With ``every`` above 0 automatic collection is off inside, and :meth:`stepped` collects after so many steps. With 0
    the interpreter's own thresholds decide, as they do in the engine. What was before is put back at the end.
    """

    def __init__(self, log: Disturbances, clock: Clock, every: int = COLLECT_EVERY) -> None:
        self._log, self._clock, self._every = log, clock, every
        self._begin = 0
        self._steps = 0
        self._was_enabled = True

    @property
    def policy(self) -> str:
        if self._every:
            return f"off while steps are measured, one full collection after every {self._every} steps"
        return f"the interpreter's own, thresholds {', '.join(map(str, gc.get_threshold()))}"

    def stepped(self) -> None:
        """A step is over, and the next one has not begun."""
        self._steps += 1
        if self._every and self._steps % self._every == 0:
            gc.collect()

    def _hear(self, phase: str, info: Mapping[str, Any]) -> None:
        now = self._clock()
        if phase == "start":
            self._begin = now
        else:
            self._log.note(GC, self._begin, now)

    def __enter__(self) -> Self:
        self._was_enabled = gc.isenabled()
        gc.collect()  # what setting up left behind is no part of a step
        if self._every:
            gc.disable()
        gc.callbacks.append(self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        gc.callbacks.remove(self._hear)
        if self._was_enabled:
            gc.enable()
