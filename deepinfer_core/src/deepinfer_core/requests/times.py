"""Where the time of a request went."""

from __future__ import annotations

from attrs import asdict, frozen


@frozen
class RequestTimes:
    """Seconds; None where there is nothing to measure, such as for a request that ended in the queue."""

    queue_s: float | None
    """From submission to the first step that computes its prompt."""
    ttft_s: float | None
    """From submission to its first token (time to first token)."""
    itl_s: float | None
    """Mean time between two tokens (inter-token latency), from the first one to the end."""
    total_s: float
    """From submission to its end."""

    def as_record(self) -> dict[str, float | None]:
        """The same as JSON-serialisable data, to the microsecond."""
        return {name: None if value is None else round(value, 6) for name, value in asdict(self).items()}
