"""What TileLang's compiler, which is C++, writes to the process's standard error."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

RACE = "the race remains"
"""In a warning of the pass that puts barriers: one is missing, and the kernel may give other values each time."""


@contextmanager
def native_output() -> Iterator[list[str]]:
    """A context that gives the lines written to file descriptor 2 while it is open; the list is filled at its end."""
    lines: list[str] = []
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with tempfile.TemporaryFile() as file:
            os.dup2(file.fileno(), 2)
            try:
                yield lines
            finally:
                sys.stderr.flush()
                os.dup2(kept, 2)
                file.seek(0)
                lines += file.read().decode(errors="replace").splitlines()
    finally:
        os.close(kept)


def races(lines: list[str]) -> list[str]:
    """The lines that tell of a race."""
    return [line.strip() for line in lines if RACE in line]
