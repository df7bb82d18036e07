"""Lines of a prompts file or of standard input as they come, without waiting for one while there is other work."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deepinfer_core.errors import InvalidInputFile
from deepinfer_core.requests.prompts import MAX_LINE_BYTES

CHUNK_BYTES = 1 << 16

MOST_SKIPPED_BYTES = 1 << 30
"""How far the end of a line that is too long is looked for: a device such as /dev/zero has none."""


TOLD_AFTER_S = 2.0


@contextmanager
def told_if_it_waits(path: Path) -> Iterator[None]:
    """While ``path`` is opened: a pipe without a writer is waited for, which standard error then says."""
    if not path.is_fifo():
        yield
        return
    text = f"deepinfer: waiting for somebody to write to the pipe {path}\n"
    timer = threading.Timer(TOLD_AFTER_S, sys.stderr.write, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class LineReader:
    """Iterates over the lines of a file descriptor; ``is_ready`` tells whether the next one is there.

    The descriptor is read directly: what Python's own reader has buffered, ``select`` does not know of. Of a line
    longer than ``MAX_LINE_BYTES`` only one byte more than that is kept, by which the consumer can tell; one that goes
    on for ``MOST_SKIPPED_BYTES`` ends the reading.
    """

    def __init__(self, fd: int, name: str = "standard input") -> None:
        """``name``: what the error of a failing read calls it."""
        self._fd = fd
        self._name = name
        self._lines: deque[bytes] = deque()
        self._rest = bytearray()
        self._skipped = 0
        self._ended = False

    def __iter__(self) -> LineReader:
        return self

    def __next__(self) -> bytes:
        """The next line with its newline; waits for it. Raises InvalidInputFile when it cannot be read."""
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

    def fileno(self) -> int:
        return self._fd

    def _read(self) -> None:
        try:
            data = os.read(self._fd, CHUNK_BYTES)
        except OSError as err:
            self._ended = True
            raise InvalidInputFile(
                f"cannot read {self._name}",
                reason=err.strerror or str(err),
                remedy="give prompts as arguments, or a readable file to --prompts-file",
                details={"path": self._name},
            ) from err
        if not data:
            self._ended = True
            if self._rest:
                self._lines.append(bytes(self._rest))
            self._rest.clear()
            return
        *ends, tail = data.split(b"\n")
        for piece in ends:
            self._keep(piece)
            self._lines.append(bytes(self._rest) + b"\n")
            self._rest.clear()
            self._skipped = 0
        self._keep(tail)

    def _keep(self, piece: bytes) -> None:
        kept = piece[: MAX_LINE_BYTES + 1 - len(self._rest)]
        self._rest += kept
        self._skipped += len(piece) - len(kept)
        if self._skipped > MOST_SKIPPED_BYTES:
            self._ended = True
            raise InvalidInputFile(
                f"{self._name} has a line without an end",
                reason=f"more than {MOST_SKIPPED_BYTES + MAX_LINE_BYTES} bytes came, and no newline",
                remedy=f"give a file of lines, each of at most {MAX_LINE_BYTES} bytes",
                details={"path": self._name},
            )
