"""What a result says beside its aim and its alternatives. A result is a case as ``kernels.py`` records it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REPEATS = 0.03
"""Share by which two runs of a case differ."""


def best_other(result: Mapping[str, Any]) -> tuple[str, float] | None:
    """Name and microseconds of the fastest alternative that ran, or None."""
    ran = [(name, float(other["us"])) for name, other in result["others"].items() if "us" in other]
    return min(ran, key=lambda one: one[1], default=None)


def floor_us(result: Mapping[str, Any], ceilings: Mapping[str, float]) -> float:
    """Microseconds of its bytes or its operations at the rates of its run, whichever is more."""
    moved, done = result["bytes"] / ceilings["copy_bytes_per_s"], result["flop"] / ceilings["bf16_flop_per_s"]
    return 1e6 * max(moved, done)
