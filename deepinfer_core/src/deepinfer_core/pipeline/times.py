"""Where the time of the step loop goes."""

from __future__ import annotations

from attrs import define, fields


@define
class PhaseTimes:
    """Nanoseconds of host time spent in each phase since the start, and what was done in them.

    ``wait`` is time in which the host waits for results of the device and copies them; on a backend that computes
    within the calls, that work is in ``forward``, ``logits``, ``sample`` and ``draft`` instead. ``overlapped_steps``
    counts the steps that were launched before the step before them was committed.
    """

    schedule: int = 0
    pack: int = 0
    bind: int = 0
    feed: int = 0
    forward: int = 0
    logits: int = 0
    grammar: int = 0
    sample: int = 0
    draft: int = 0
    wait: int = 0
    commit: int = 0
    emit: int = 0
    steps: int = 0
    overlapped_steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0

    def as_record(self) -> dict[str, int]:
        return {item.name: getattr(self, item.name) for item in fields(PhaseTimes)}
