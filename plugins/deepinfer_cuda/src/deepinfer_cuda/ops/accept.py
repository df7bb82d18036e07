"""Verification of drafts in one op (``spec/sampling.md`` 2.7): done by the op of ``cpu``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

OPS: dict[str, Callable[..., Any]] = {}
DELEGATED = {
    "sample.verify": "the canonical sampler verifies distributions that it filtered in fixed point, and never calls it",
}
"""What the op of ``cpu`` does on this device, and why that is enough."""
