"""Warnings of this program on standard error, as lines for a person rather than with a place in the source."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_OWN = re.compile(r"W_[A-Z_]+: ")
"""How the text of one begins (``W_GRAMMAR_END: ...``)."""


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Inside, ``deepinfer: W_...`` for our own warnings. Those of libraries stay as Python shows them."""
    held = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if file is None and _OWN.match(str(message)):
            sys.stderr.write(f"deepinfer: {message}\n")
        else:
            held(message, category, filename, lineno, file, line)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = held
