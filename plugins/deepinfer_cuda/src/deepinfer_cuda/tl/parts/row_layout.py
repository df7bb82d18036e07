"""Which thread holds which values of a row: one answer for each width, whatever the number of rows.

A *chunk* is eight bf16, 16 bytes. Lane l of the ``lanes`` threads of a row holds chunks l, l + lanes, l + 2 lanes, ...,
so that the threads of a warp read and write runs of 16 bytes side by side. Because the layout, and with it the order of
every sum, follows from the width alone, a row's result depends neither on its batch nor on the kernel that made it.
"""

from __future__ import annotations

from attrs import frozen

CHUNK = 8
"""bf16 values that a thread reads at once."""
WARP = 32
BLOCK = 128
"""Threads of a block."""
MOST_CHUNKS = 8


@frozen
class RowLayout:
    """:ivar lanes: threads of a row (a power of two); ``chunks``: chunks that each of them holds."""

    lanes: int
    chunks: int

    @property
    def groups(self) -> int:
        """Rows that a block works on at a time."""
        return BLOCK // self.lanes


def row_layout(width: int) -> RowLayout | None:
    """The layout of rows of ``width`` values; None where the width does not divide into whole chunks of lanes."""
    chunks, rest = divmod(width, CHUNK)
    if rest or not chunks:
        return None
    lanes = min(chunks & -chunks, BLOCK)
    if lanes >= WARP and chunks // WARP <= MOST_CHUNKS:
        lanes = WARP
    held = chunks // lanes
    return RowLayout(lanes, held) if held <= MOST_CHUNKS else None
