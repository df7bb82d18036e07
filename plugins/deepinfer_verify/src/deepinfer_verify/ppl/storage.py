"""The file of baselines: read, and changed by one process at a time without ever being half written.

A writer takes the lock, reads what is there now, adds its entries and puts a whole new file in place. Killed at any
point it leaves the old file or the new one, and a lock that the system has given back.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

from deepinfer_core.bounded_file import MAX_TEXT_BYTES, read_bounded
from deepinfer_core.errors import BaselineError
from deepinfer_core.whole_file import remove_remains, write_whole
from deepinfer_verify.ppl.records import Entry, parse, text_of

LOCK_TIMEOUT_S = 60.0
"""A holder needs milliseconds: this is for many that wait, or a file system that is away."""


def read_baseline(path: Path, *, may_be_missing: bool = False) -> dict[str, Entry]:
    """The entries by key. Raises BaselineError."""
    try:
        return parse(path, read_bounded(path, MAX_TEXT_BYTES).decode("utf-8"))
    except FileNotFoundError as err:
        if may_be_missing:
            return {}
        raise BaselineError(
            f"there is no file of baselines {path}",
            reason="without one there is nothing to compare with",
            remedy="correct --baseline, or make the file with --update",
            details={"path": str(path)},
        ) from err
    except OSError as err:
        raise _unusable(path, "read", err) from err
    except UnicodeDecodeError as err:
        raise BaselineError(
            f"{path} is no file of baselines: it is no UTF-8",
            reason=str(err),
            remedy="restore it from version control, or move it away and make a new one with --update",
            details={"path": str(path)},
        ) from err


@frozen
class HeldBaseline:
    """The file while its lock is held."""

    path: Path
    entries: Mapping[str, Entry]
    """As they are now, and until the lock is given back."""

    def put(self, entry: Entry) -> None:
        """Write the file with ``entry`` beside the others, or in place of that of its key. Raises BaselineError."""
        try:
            remove_remains(self.path)
            write_whole(self.path, text_of({**self.entries, entry.key: entry}))
        except OSError as err:
            raise _unusable(self.path, "write", err) from err


@contextmanager
def held_baseline(path: Path) -> Iterator[HeldBaseline]:
    """Take the lock and read the file; none yet has no entries. Raises BaselineError."""
    if os.path.exists(path) and not os.path.isfile(path):
        # Before it is read: a device may have no end.
        raise _unusable(path, "update", OSError(errno.EINVAL, "it is no regular file"))
    with _locked(path):
        yield HeldBaseline(path, read_baseline(path, may_be_missing=True))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the lock of ``path``: the file ``.NAME.lock`` beside it, which stays."""
    from filelock import FileLock, Timeout  # 30 ms, and only an update needs it

    if not os.path.isdir(path.parent):  # the library would make it; Path.is_dir raises for some errors
        raise _unusable(path, "write", NotADirectoryError(errno.ENOTDIR, f"{path.parent} is no folder"))
    lock = FileLock(path.parent / f".{path.name}.lock", timeout=LOCK_TIMEOUT_S)
    try:
        # The library waits where a lock cannot be made, as for one that another process holds: so it is made here.
        os.close(os.open(lock.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
        lock.acquire()
    except Timeout as err:
        raise BaselineError(
            f"{path} is held by another process for {LOCK_TIMEOUT_S:.0f} s",
            reason=f"it has the lock {lock.lock_file}",
            remedy="wait for it, or end it: a lock goes with the process that holds it",
            details={"path": str(path), "lock": str(lock.lock_file)},
        ) from err
    except OSError as err:
        raise _unusable(path, "write beside", err) from err
    try:
        yield
    finally:
        lock.release()


def _unusable(path: Path, verb: str, err: OSError) -> BaselineError:
    return BaselineError(
        f"cannot {verb} the file of baselines {path}",
        reason=err.strerror or str(err),
        remedy="check --baseline, and the rights on its folder",
        details={"path": str(path)},
    )
