"""Write a file as a whole or not at all, whenever the process or the machine ends."""

from __future__ import annotations

import os
import secrets
import sys
from contextlib import suppress
from pathlib import Path

SUFFIX = ".part"


def write_whole(path: Path, text: str) -> None:
    """Put ``text`` into ``path`` in UTF-8: whoever reads sees the file as it was, or the whole new one.

    It is on the disk when this returns. A process killed in the middle leaves no half file under any name, where the
    system can write a file that has none yet; elsewhere, and between two system calls, it leaves a ``.NAME.*.part``,
    which :func:`remove_remains` removes. A link stays one, and the file that it names is written. A device, a pipe, and
    what standard output or error goes to get the text as it is. Raises OSError, and leaves nothing behind.
    """
    stream = _standard_stream(path)
    if stream is not None or (path.exists() and not path.is_file()):
        with open(path if stream is None else stream, "w", encoding="utf-8", closefd=stream is None) as target:
            target.write(text)
        return
    path = Path(os.path.realpath(path))
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}{SUFFIX}"
    try:
        _write_new(temporary, text.encode("utf-8"))
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _sync_folder(path.parent)


def remove_remains(path: Path) -> None:
    """Remove what writers of ``path`` left that were killed. Only for who knows that none is at work, by a lock."""
    path = Path(os.path.realpath(path))
    before = f".{path.name}."
    for entry in os.listdir(path.parent):
        if entry.startswith(before) and entry.endswith(SUFFIX):
            os.unlink(path.parent / entry)


def _standard_stream(path: Path) -> int | None:
    """The descriptor of standard output or error that ``path`` is another name of, such as /dev/stdout; else None."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        with suppress(OSError):
            if os.path.samestat(os.stat(path), os.fstat(number)):
                if stream is not None:
                    stream.flush()  # what was printed before comes before
                return number
    return None


def _write_new(path: Path, data: bytes) -> None:
    """A file that gets its name when its content is on the disk."""
    try:
        handle = os.open(path.parent, os.O_TMPFILE | os.O_WRONLY, 0o666)  # Linux
    except (AttributeError, OSError):
        _write_named(path, data)
        return
    with os.fdopen(handle, "wb") as stream:
        _write_all(stream.fileno(), data)
        try:
            # The descriptor given makes Python call linkat, which follows the link in /proc to the file itself.
            os.link(f"/proc/self/fd/{handle}", path, src_dir_fd=handle)
            return
        except OSError:  # no /proc here
            pass
    _write_named(path, data)


def _write_named(path: Path, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    with os.fdopen(handle, "wb") as stream:
        _write_all(stream.fileno(), data)


def _write_all(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]
    os.fsync(handle)


def _sync_folder(folder: Path) -> None:
    """Make the new name of a file survive a loss of power, where the system lets a folder be opened."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        with suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)
