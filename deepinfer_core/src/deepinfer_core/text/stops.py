"""Stop strings, found in text that arrives in pieces.

The result does not depend on where the pieces end: the stop string that is complete first wins (the one that began
earlier, where two complete at the same character). Text that may still become a stop string is held back.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopScanner:
    """Scans one answer. Feed it text in order; it releases what cannot belong to a stop string."""

    __slots__ = ("_held", "_stops")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """``(released text, stop string or None)``. After a stop string nothing is held and the rest is dropped."""
        if not text:
            return "", None
        buffer = self._held + text
        best: tuple[int, int, str] | None = None  # (end, start, stop)
        for stop in self._stops:
            start = buffer.find(stop)
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        if best is not None:
            self._held = ""
            return buffer[: best[1]], best[2]
        keep = max(_open_suffix(buffer, stop) for stop in self._stops)
        cut = len(buffer) - keep
        self._held = buffer[cut:]
        return buffer[:cut], None

    def flush(self) -> str:
        """What is still held; no more text comes."""
        held, self._held = self._held, ""
        return held


def _open_suffix(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that is a proper beginning of ``stop``."""
    start = max(0, len(text) - len(stop) + 1)
    while True:
        start = text.find(stop[0], start)
        if start < 0:
            return 0
        if stop.startswith(text[start:]):
            return len(text) - start
        start += 1
