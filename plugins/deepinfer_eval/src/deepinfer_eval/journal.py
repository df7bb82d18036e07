"""The file of answers while it grows.

Whole lines are appended, one write each, and nothing that was written is ever touched again: whatever ends the
process, ``kill -9`` included, the file has every answer that was told, and at most half a line more, which the next
run cuts off. One process writes at a time; its lock goes with it.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from types import TracebackType
from typing import Self

from deepinfer_core.cli.streams import same_file
from deepinfer_core.commands import json_line
from deepinfer_core.errors import OutputError
from deepinfer_eval.answers import Answers, Header, parse_answers


class Journal:
    """The file at ``path``, opened, locked and read; it is made if it is not there.

    :raises OutputError: it cannot be opened, or another process writes it.
    :raises InvalidInputFile: it is no file of answers; it stays as it is.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as err:
            raise OutputError(
                f"cannot write {path}", reason=err.strerror or str(err), remedy="check --out", details={"path": path}
            ) from err
        try:
            self._lock()
            with os.fdopen(os.dup(self._fd), "rb") as stream:
                stream.seek(0)
                self.found: Answers = parse_answers(stream, path)
        except BaseException:
            os.close(self._fd)
            raise
        self._length = self.found.whole_bytes

    def begin(self, header: Header) -> None:
        """Cut off half a line, and write the header if the file has none."""
        if self.found.cut_bytes:
            os.ftruncate(self._fd, self._length)
        if self.found.header is None:
            self.append(header.as_record())
            os.fsync(self._fd)

    def append(self, record: dict[str, object]) -> None:
        """Add a line. Raises OutputError, and leaves the file as it was, where the system does not take all of it."""
        line = memoryview(json_line(record))
        try:
            while line:
                line = line[os.write(self._fd, line) :]
        except OSError as err:
            os.ftruncate(self._fd, self._length)
            raise OutputError(
                f"cannot write {self.path}",
                reason=err.strerror or str(err),
                remedy="make room there, and run the same command again: it goes on where this one stopped",
                details={"path": self.path},
            ) from err
        self._length = os.lseek(self._fd, 0, os.SEEK_END)
        self._move_standard_streams()

    def close(self) -> None:
        """Bring all of it to the disk. Idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _move_standard_streams(self) -> None:
        """``--out /dev/stdout > FILE``: what the stream itself gets comes behind the answers, not over them."""
        for number in (1, 2):
            with suppress(OSError):
                if same_file(number, self._fd):
                    os.lseek(number, 0, os.SEEK_END)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            raise OutputError(
                f"another process writes {self.path}",
                reason="it holds the lock of the file, so it is alive",
                remedy="wait for it, or give another file to --out",
                details={"path": self.path},
            ) from err
