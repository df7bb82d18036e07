"""The process's standard streams and output files, in whatever state they are.

A stream that was closed before the start is a null device. What cannot be written to standard output or to a file of
results is a typed error; what cannot be written to standard error is lost, since there is nowhere left to say so.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from deepinfer_core.errors import OutputError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class CheckedFile(io.FileIO):
    """A file whose failing writes raise OutputError; BrokenPipeError, which is no failure, stays as it is."""

    shown = ""
    """What the message calls it."""

    def write(self, data: ReadableBuffer, /) -> int | None:  # type: ignore[override]  # None: it would block
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as err:
            raise unwritable(self.shown, err) from err


class ResultsFile(CheckedFile):
    """A file of lines that nobody else writes. Where the system takes a part of one, that part is taken back."""

    _whole = -1
    """Length up to the end of the last whole line; below 0: nothing was written yet."""
    _refused: OutputError | None = None

    def write(self, data: ReadableBuffer, /) -> int | None:  # type: ignore[override]
        if self._refused is not None:  # a buffer has the rest of the line that was taken back
            raise self._refused
        before = os.fstat(self.fileno()).st_size
        if self._whole < 0:
            self._whole = before
        try:
            taken = super().write(data)
        except OutputError as err:
            self._refused = err
            os.ftruncate(self.fileno(), self._whole)
            raise
        lines = bytes(memoryview(data)[:taken]).rfind(b"\n") + 1
        if lines:
            self._whole = before + lines
        return taken


class LossyFile(io.FileIO):
    """A file whose failing writes are lost."""

    def write(self, data: ReadableBuffer, /) -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def unwritable(
    shown: str, err: OSError, elsewhere: str = "write elsewhere, with --out or a redirection"
) -> OutputError:
    """The error for a write to ``shown`` that the system refused; ``elsewhere``: the remedy where nothing is full."""
    full = err.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return OutputError(
        f"cannot write {shown}",
        reason=err.strerror or str(err),
        remedy="make room there, or write elsewhere" if full else elsewhere,
        details={"path": shown, "errno": errno.errorcode.get(err.errno or 0, "")},
    )


def open_results(path: str) -> io.BufferedWriter:
    """``path`` for results; its old content stays until :func:`empty`.

    Raises OSError where it cannot be opened, OutputError where another process writes results there.
    """
    raw: CheckedFile = CheckedFile(path, "ab")
    raw.shown = path
    if stat.S_ISREG(os.fstat(raw.fileno()).st_mode) and not _is_standard(raw.fileno()):
        raw = _held(raw)
    return io.BufferedWriter(raw)


def _held(file: CheckedFile) -> ResultsFile:
    """The same file, kept from others as long as it is open: results of two runs in one file are results of none."""
    held = ResultsFile(os.dup(file.fileno()), "ab")
    held.shown = file.shown
    file.close()
    try:
        fcntl.flock(held.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as err:
        held.close()
        raise OutputError(
            f"another process writes {held.shown}",
            reason="it holds the lock of the file, so it is alive",
            remedy="wait for it, or give another file to --out",
            details={"path": held.shown},
        ) from err
    except OSError:  # a file system without locks
        pass
    return held


def empty(file: io.BufferedWriter) -> None:
    """Drop the old content. Devices, pipes and sockets have none, and what a shell appends to keeps it."""
    try:
        if _is_standard(file.fileno()):  # /dev/stdout, with >> log
            return
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.truncate(0)
    except OSError as err:
        raise unwritable(str(getattr(file.raw, "shown", file.name)), err) from err


def _is_standard(number: int) -> bool:
    """Whether it is the file that standard output or error goes to, which the shell opened and others may share."""
    return any(same_file(number, standard) for standard in (1, 2))


def same_file(one: int, other: int) -> bool:
    """Whether two descriptors are of one regular file, by whatever names they were opened."""
    first, second = os.fstat(one), os.fstat(other)
    return stat.S_ISREG(first.st_mode) and os.path.samestat(first, second)


@contextmanager
def standard_streams() -> Iterator[None]:
    """Make standard input, output and error usable inside; streams that the caller replaced stay as they are."""
    _fill_descriptors()
    held = sys.stdin, sys.stdout, sys.stderr
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  # the descriptor outlives it
    if sys.stdout is None or sys.stdout is sys.__stdout__:
        raw = CheckedFile(1, "wb", closefd=False)
        raw.shown = "standard output"
        sys.stdout = _text(raw, sys.stdout)
    if sys.stderr is None or sys.stderr is sys.__stderr__:
        sys.stderr = _text(LossyFile(2, "wb", closefd=False), sys.stderr, line_buffering=True)
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = held


def silence_stdout() -> None:
    """Point standard output at nothing, so that what is still buffered for it goes without a complaint."""
    try:
        number = sys.stdout.fileno()
    except OSError:  # a stream in memory
        return
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, number)
    os.close(devnull)


def _fill_descriptors() -> None:
    """Open 0, 1 and 2 where they are closed: the next file to be opened would become a standard stream."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            os.set_inheritable(opened, True)


def _text(raw: io.FileIO, replaced: Any, *, line_buffering: bool = False) -> io.TextIOWrapper:
    """A text stream over ``raw`` in the encoding of the one that it replaces; nothing is too odd to be printed."""
    if replaced is not None:
        replaced.flush()
    encoding = "utf-8" if replaced is None else replaced.encoding
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding, "backslashreplace", line_buffering=line_buffering or raw.isatty()
    )
