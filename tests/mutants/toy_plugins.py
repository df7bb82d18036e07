"""Makes the toys of ``toys/conformance_toys`` installed plugins, for this process: their metadata lies beside them."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent


def install() -> None:
    """Put the toys, and the toy engine parts that they are made of, on the import path."""
    parts = HERE.parents[1] / "deepinfer_core" / "tests"
    sys.path[:0] = [str(HERE / "toys"), str(parts)]
