"""How a dense product of few rows is cut into blocks: by the weight's shape, so that sums have one order.

Small blocks, several of a multiprocessor, bring a weight soonest. Where sums are not cut and are long, more than 16
rows are better off with blocks of 256 outputs: else the rows, which every block reads again, are as many bytes as the
weight.
"""

from functools import lru_cache
from typing import Any

from attrs import frozen

STEP = 128
"""Inputs a pipeline stage holds."""
BLOCKS = 200
"""Small blocks that a product should have at least, for 132 multiprocessors. A constant: the order of a sum must not
depend on the device it runs on."""
PLACES = 132
"""Wide blocks that run at once, one a multiprocessor."""
LONG = 32
"""Steps that a block of 256 outputs needs for its beginning and its end not to count."""
MOST_SPLITS = 8
"""Blocks of a cluster that every device takes."""
FEW_ROWS = 16
"""Rows up to which blocks are small."""


@frozen
class Cut:
    """Outputs a block, pieces that the inputs are summed in, and blocks of each tile of rows."""

    tile: int
    splits: int
    blocks: int


@lru_cache(maxsize=256)
def cut_of(outputs: int, inputs: int, groups: int = 1) -> Cut | None:
    """Small blocks of ``groups`` weights of this shape, or None where our kernel does not take them."""
    if outputs % (64 if groups > 1 else 8) or inputs % STEP:
        return None
    tile = 128 if outputs % 128 == 0 and groups * outputs // 128 >= BLOCKS else 64
    tiles, steps = -(-groups * outputs // tile), inputs // STEP
    allowed = [n for n in range(1, min(steps, MOST_SPLITS) + 1) if steps % n == 0]
    splits = min((n for n in allowed if tiles * n >= BLOCKS), default=allowed[-1])
    return Cut(tile, splits, tiles * splits)


@lru_cache(maxsize=256)
def wide_cut_of(outputs: int, inputs: int, groups: int = 1) -> Cut | None:
    """Blocks of 256 outputs for weights whose sums are long and not cut; None for others."""
    small = cut_of(outputs, inputs, groups)
    blocks = groups * outputs // 256
    if small is None or small.splits > 1 or outputs % 256 or blocks > PLACES or inputs // STEP < LONG:
        return None
    return Cut(256, 1, blocks)


def pipeline(cut: Cut, rows: int, codes: bool) -> dict[str, Any]:
    """Stages, blocks of a multiprocessor that shared memory and registers have room for, and whether a step of codes
    is unpacked beside the product of the one before, which takes registers for two."""
    if not codes:
        return {"stages": 4 if rows <= 32 else 3, "blocks": 2, "ahead": False}
    if cut.tile == 64:
        return {"stages": 5, "blocks": 3, "ahead": True} if rows <= 16 else {"stages": 4, "blocks": 2, "ahead": True}
    if cut.tile == 256:
        return {"stages": 4, "blocks": 1, "ahead": False}
    if rows <= 16 and cut.blocks > 2 * PLACES:  # three blocks a multiprocessor have no registers for two steps
        return {"stages": 4 if rows <= 8 else 3, "blocks": 3, "ahead": False}
    return {"stages": 4 if rows <= 32 else 3, "blocks": 2, "ahead": rows <= 16}
