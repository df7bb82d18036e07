"""Lines on standard error about an engine: the backend that runs, and what else is worth a word when one is made."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_SAID: ContextVar[set[str] | None] = ContextVar("said", default=None)


def announce(line: str) -> None:
    """Write ``line``, but not again within :func:`each_line_once`."""
    said = _SAID.get()
    if said is not None:
        if line in said:
            return
        said.add(line)
    sys.stderr.write(line + "\n")


@contextmanager
def each_line_once() -> Iterator[None]:
    """For a command, which may make many engines of one kind: a person needs to read of the backend once."""
    token = _SAID.set(set())
    try:
        yield
    finally:
        _SAID.reset(token)
