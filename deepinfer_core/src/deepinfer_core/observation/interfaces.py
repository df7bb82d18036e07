"""What an observer offers, and what it may ask (``deepinfer_core.interfaces`` has both)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from deepinfer_core.types import EngineSnapshot, RequestReport, StepReport


class EngineView(Protocol):
    """What an observer may ask of an engine, from any thread and at any time, also after its end."""

    @property
    def depth(self) -> int:
        """Steps in flight at most."""

    @property
    def num_live(self) -> int:
        """Requests that have not ended."""

    @property
    def num_in_flight(self) -> int:
        """Steps that were launched and not committed."""

    @property
    def in_flight_s(self) -> float:
        """Age of the oldest of them in seconds; 0 where there is none."""

    @property
    def progress_age_s(self) -> float:
        """Seconds since a step was launched or committed."""

    @property
    def fault(self) -> str:
        """Why the engine stopped for good; empty where it has not."""

    def snapshot(self) -> EngineSnapshot:
        """Counters and levels as of now. Waits for the end of a step that runs, for a second at most; then they are
        what was last known. Where nothing is left to do, the core says whether it has all of its memory back."""


@runtime_checkable
class StepObserver(Protocol):
    """Sees what an engine does and changes nothing. One that raises is dropped, which is said once.

    All but ``close`` is called in the thread that runs the steps, so the time that it takes is time of the step.
    """

    def ready(self, engine: EngineView) -> None:
        """The model is loaded and the engine takes requests. Called once."""

    def step(self, step: StepReport) -> None:
        """A step was committed."""

    def ended(self, request: RequestReport) -> None:
        """A request has ended: with an answer, or for any other reason."""

    def close(self) -> None:
        """Nothing more will come; also where the engine never was ready. Idempotent."""
