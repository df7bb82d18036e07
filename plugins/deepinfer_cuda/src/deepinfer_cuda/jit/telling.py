"""Lines on standard error while kernels are compiled at first use: a minute without a word looks like a hang."""

from __future__ import annotations

import time
from collections.abc import Callable

from deepinfer_core.assembly.announcing import announce

COMPILED_S = 1.0
"""What takes longer was compiled: an entry of the cache is loaded in milliseconds, and no kernel compiles faster."""

PAUSE_S = 15.0
"""Between two lines."""


class Telling:
    """One line with the first kernel that was compiled, which names the command that does it beforehand; then how many.

    Not safe for threads: whoever compiles holds the compiler's lock.
    """

    def __init__(self, say: Callable[[str], None] = announce, clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._count = 0
        self._said_at = 0.0

    def had(self, label: str, arch: str, took_s: float) -> None:
        """Kernel ``label`` is there, after ``took_s`` seconds."""
        if took_s < COMPILED_S:
            return
        self._count += 1
        now = self._clock()
        if self._count == 1:
            self._say(
                f"deepinfer: compiling kernels for {arch} at their first use, some seconds each, and keeping them; "
                "python -m deepinfer_cuda.jit.warm does that beforehand, in several processes"
            )
        elif now - self._said_at >= PAUSE_S:
            self._say(f"deepinfer: {self._count} kernels compiled so far, the last one {label}")
        else:
            return
        self._said_at = now
