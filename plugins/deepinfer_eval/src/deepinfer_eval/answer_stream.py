"""Answers into what keeps nothing: a pipe, a device, a socket. Lines go out in order, and no run goes on from them."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from deepinfer_core.cli.streams import unwritable
from deepinfer_core.commands import json_line
from deepinfer_eval.answers import Answers, Header
from deepinfer_eval.journal import Journal

STANDARD_OUTPUT = 1


class AnswerStream:
    """As a :class:`~deepinfer_eval.journal.Journal`, for what is no regular file.

    :raises OutputError: it cannot be opened.
    """

    found = Answers(None)
    """Nothing is there to go on from."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            # Standard output itself under any of its names: a socket cannot be opened again.
            self._fd = (
                os.dup(STANDARD_OUTPUT) if is_standard_output(path) else os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            )
        except OSError as err:
            raise unwritable(path, err) from err

    def begin(self, header: Header) -> None:
        self.append(header.as_record())

    def append(self, record: dict[str, object]) -> None:
        """Write a line. Raises OutputError; BrokenPipeError where the reader left."""
        line = memoryview(json_line(record))
        try:
            while line:
                line = line[os.write(self._fd, line) :]
        except BrokenPipeError:
            raise
        except OSError as err:
            raise unwritable(self.path, err) from err

    def close(self) -> None:
        """Idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def open_answers(path: str) -> Journal | AnswerStream:
    """The file at ``path``, which a later run can go on with, or a stream to whatever else is there.

    Raises what :class:`Journal` and :class:`AnswerStream` raise.
    """
    with suppress(OSError):
        if not stat.S_ISREG(os.stat(path).st_mode) and not os.path.isdir(path):
            return AnswerStream(path)
    return Journal(path)


def is_standard_output(path: str) -> bool:
    """Whether ``path`` is another name of what standard output goes to, such as /dev/stdout."""
    with suppress(OSError):
        return os.path.samestat(os.stat(path), os.fstat(STANDARD_OUTPUT))
    return False
