"""Lines of standard input as they come, without waiting for one while there is other work."""

from __future__ import annotations

import os
import select
from collections import deque

CHUNK_BYTES = 1 << 16


class LineReader:
    """Iterates over the lines of a file descriptor; ``is_ready`` tells whether the next one is there.

    The descriptor is read directly: what Python's own reader has buffered, ``select`` does not know of.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self._ended = False

    def __iter__(self) -> LineReader:
        return self

    def __next__(self) -> bytes:
        """The next line with its newline; waits for it."""
        while not self._lines and not self._ended:
            self._read()
        if not self._lines:
            raise StopIteration
        return self._lines.popleft()

    def is_ready(self) -> bool:
        """Whether ``next`` would return, or stop, at once."""
        while not self._lines and not self._ended:
            if not select.select([self._fd], [], [], 0)[0]:
                return False
            self._read()
        return True

    def _read(self) -> None:
        data = os.read(self._fd, CHUNK_BYTES)
        if not data:
            self._ended = True
            if self._rest:
                self._lines.append(self._rest)
            self._rest = b""
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._lines.extend(line + b"\n" for line in lines)
