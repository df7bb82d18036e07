"""How far a run is, on standard error and for people only."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from deepinfer_core.requests.request import Request


class Progress:
    """``12 of 40 prompts, 345 tokens, 67 tokens/s`` on a terminal; silent elsewhere."""

    INTERVAL_S = 0.2

    def __init__(self, stream: TextIO | None = None, *, enabled: bool = True) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._enabled = enabled and self._stream.isatty()
        self._start = time.monotonic()
        self._shown = 0.0
        self._done = 0
        self._tokens = 0
        self._width = 0

    def ended(self, request: Request, read: int) -> None:
        """``read``: prompts read so far."""
        self._done += request.head.open_samples == 0
        self._tokens += len(request.token_ids)
        now = time.monotonic()
        if not self._enabled or now - self._shown < self.INTERVAL_S:
            return
        self._shown = now
        rate = self._tokens / max(now - self._start, 1e-9)
        self._show(f"{self._done} of {read} prompts, {self._tokens} tokens, {rate:.0f} tokens/s")

    def close(self) -> None:
        """Take the line away."""
        if self._enabled and self._width:
            self._show("")
            self._stream.write("\r")
            self._stream.flush()

    def _show(self, text: str) -> None:
        self._stream.write("\r" + text.ljust(self._width))
        self._stream.flush()
        self._width = max(self._width, len(text))
