"""What structured output has cost so far."""

from __future__ import annotations

from attrs import frozen


@frozen
class GrammarReport:
    """Counts since the engine was made."""

    compiled: int = 0
    cached: int = 0
    """Requests whose grammar was compiled already."""
    failed: int = 0
    """Grammars that do not compile."""
    timed_out: int = 0
    """Requests that waited too long for theirs."""
    stuck_workers: int = 0
    """Compiler threads that are beyond the time limit now."""
    steps: int = 0
    """Steps with at least one mask."""
    masks: int = 0
    """Masks written: one for each row of a request under its grammar."""
    fill_ns: int = 0
    """Host time that masks took, matchers included."""

    @property
    def was_used(self) -> bool:
        return bool(self.compiled or self.cached or self.failed or self.timed_out)

    @property
    def fill_us_per_step(self) -> float:
        return self.fill_ns / self.steps / 1e3 if self.steps else 0.0

    def __str__(self) -> str:
        text = f"grammars: {self.compiled} compiled, {self.cached} cached, {self.failed} failed"
        if self.timed_out or self.stuck_workers:
            text += f", {self.timed_out} timed out, {self.stuck_workers} workers stuck"
        return f"{text}; {self.masks} masks in {self.steps} steps, {self.fill_us_per_step:.0f} us a step"
