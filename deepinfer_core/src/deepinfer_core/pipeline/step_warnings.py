"""Warnings from inside a step."""

from __future__ import annotations

import sys
import warnings


def warn(text: str) -> None:
    """Warn, and go on.

    Where warnings are errors (``-W error``, ``pytest.ini``) the text goes to standard error: an exception would end the
    step, and with it the requests that it has nothing to do with.
    """
    try:
        warnings.warn(text, stacklevel=3)
    except Warning:
        sys.stderr.write(f"deepinfer: {text}\n")
