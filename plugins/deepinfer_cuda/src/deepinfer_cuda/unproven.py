"""Kernels that do not serve yet.

A kernel serves once its tests in ``tests/device`` have passed on a device. Until then its op is done by the plain one,
and the plan says so; the tests and the benchmarks of the kernel call it all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

EXPERT_ROWS = "moe.experts: sort and gather"
"""The kernels that bring rows to their experts; the products themselves serve."""
OPS: set[str] = set()
"""What the plain ops still do, by op. Empty: the tests of every kernel have passed on a device."""


def serves(op: str) -> bool:
    """Whether the kernels of ``op`` are in use."""
    return op not in OPS


@contextmanager
def all_serve() -> Iterator[None]:
    """Every kernel in use: for tests and benchmarks of the kernels themselves."""
    before = set(OPS)
    OPS.clear()
    try:
        yield
    finally:
        OPS.update(before)
