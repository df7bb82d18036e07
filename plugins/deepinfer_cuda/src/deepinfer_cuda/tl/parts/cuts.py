"""How a dense product of few rows is cut into blocks: by the weight's shape alone, so that sums have one order."""

from functools import lru_cache

from attrs import frozen

STEP = 128
"""Inputs a pipeline stage holds."""
BLOCKS = 200
"""Blocks that a product should have at least, for 132 multiprocessors. A constant: the order of a sum must not depend
on the device it runs on."""
MOST_SPLITS = 8
"""Blocks of a cluster that every device takes."""


@frozen
class Cut:
    """Outputs a block, and pieces that the inputs are summed in: of the weight's shape alone."""

    tile: int
    splits: int


@lru_cache(maxsize=256)
def cut_of(outputs: int, inputs: int, groups: int = 1) -> Cut | None:
    """How ``groups`` weights of this shape are cut, or None where our kernel does not take them."""
    if outputs % (64 if groups > 1 else 8) or inputs % STEP:
        return None
    tile = 128 if outputs % 128 == 0 and groups * outputs // 128 >= BLOCKS else 64
    tiles, steps = -(-groups * outputs // tile), inputs // STEP
    allowed = [n for n in range(1, min(steps, MOST_SPLITS) + 1) if steps % n == 0]
    return Cut(tile, min((n for n in allowed if tiles * n >= BLOCKS), default=allowed[-1]))


def pipeline(tile: int, rows: int, codes: bool) -> dict[str, int]:
    """Stages, and blocks of a multiprocessor, that shared memory and registers have room for."""
    if codes and tile == 64 and rows <= 16:
        return {"stages": 5, "blocks": 3}
    return {"stages": 4 if rows <= 32 or (codes and tile == 64) else 3, "blocks": 2}
