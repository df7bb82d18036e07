"""Read a file as a whole, up to a size: a path may name a device without an end, or more than the memory holds."""

from __future__ import annotations

import errno
import io
import os
import stat

MAX_TEXT_BYTES = 1 << 28
"""Of a text that a person wrote or chose: a template, a text to cut prompts from, tools, a file of baselines."""

MAX_RECORDS_BYTES = 1 << 31
"""Of a file with a line for each prompt or item. What is read from it takes several times as much memory."""

PIECE_BYTES = 1 << 20


def read_bounded(path: str | os.PathLike[str], limit: int) -> bytes:
    """The bytes of ``path``, at most ``limit``.

    Raises OSError, with EFBIG where there are more: of a file that is known before it is read, of a device or a pipe
    once so many have come.
    """
    with open(path, "rb") as stream:
        about = os.fstat(stream.fileno())
        if stat.S_ISREG(about.st_mode):
            if about.st_size > limit:
                raise _too_large(limit)
            return stream.read()
        data = bytearray()
        while piece := stream.read(PIECE_BYTES):
            data += piece
            if len(data) > limit:
                raise _too_large(limit)
        return bytes(data)


def read_bounded_text(path: str | os.PathLike[str], limit: int = MAX_TEXT_BYTES) -> str:
    """The same as UTF-8 text, its ends of lines as Python's own reader has them. Raises UnicodeDecodeError as well."""
    return io.TextIOWrapper(io.BytesIO(read_bounded(path, limit)), "utf-8").read()


def _too_large(limit: int) -> OSError:
    return OSError(errno.EFBIG, f"it is larger than {limit} bytes")
