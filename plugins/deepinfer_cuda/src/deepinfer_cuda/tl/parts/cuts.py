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
CLUSTERED = 220
"""Small blocks of clusters that run at once: 216 did, 240 did not."""
LONG = 32
"""Steps that a block of 256 outputs needs for its beginning and its end not to count."""
MOST_SPLITS = 8
"""Blocks of a cluster that every device takes."""
FEWEST_ROWS, FEW_ROWS, SOME_ROWS = 8, 16, 32
"""Rows up to which no block is wide, and up to which a multiprocessor has room for three small ones: at two steps of
unpacked codes, at one."""


TILES_OF_ROWS = (8, 16, 32, 64)


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


@lru_cache(maxsize=256)
def even_cut_of(outputs: int, inputs: int, groups: int = 1) -> Cut | None:
    """As :func:`cut_of`, for rows that leave a multiprocessor room for two small blocks: with a piece less where a few
    blocks would run in a second wave, which takes as long as the first, and clusters of the rest fit well."""
    small = cut_of(outputs, inputs, groups)
    if small is None or small.tile != 64 or small.blocks <= 2 * PLACES:
        return small
    fewer = small.blocks // small.splits * (small.splits - 1)
    return Cut(64, small.splits - 1, fewer) if fewer <= CLUSTERED else small


def best_cut_of(outputs: int, inputs: int, groups: int, rows: int) -> Cut | None:
    """How ``rows`` rows are multiplied soonest by FP8 codes; the order of a sum depends on their number."""
    shape = outputs, inputs, groups
    wide = wide_cut_of(*shape) if rows > FEWEST_ROWS else None
    return wide or (even_cut_of(*shape) if rows > SOME_ROWS else cut_of(*shape))


def rows_of_tile(cut: Cut, rows: int, codes: bool) -> int:
    """Rows of a block: the least of ``TILES_OF_ROWS`` that holds ``rows``, but 16 where two to four pieces of FP8 codes
    are added up, which is faster than 8 there."""
    least = 16 if codes and 2 <= cut.splits <= 4 else 8
    return next((n for n in TILES_OF_ROWS if max(rows, least) <= n), TILES_OF_ROWS[-1])


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


CHUNK = 32
"""Inputs of a piece of 16 outputs of packed codes, 512 bytes: 16 for each thread of a warp."""
STREAM_ROWS = (1, 4)
"""Rows that a stream is compiled for."""


@frozen
class Stream:
    """Pieces of 16 outputs a block, warps that share its inputs, chunks of each that are on their way, blocks that a
    multiprocessor has registers for, and rows up to which this is ahead of the blocks of :func:`cut_of`."""

    pieces: int
    warps: int
    depth: int
    blocks: int
    most: int


STREAMS = {(1024, 4096, 8): Stream(2, 8, 8, 2, 4)}
"""By outputs, inputs and weights side by side (``tl/dense/streams.py``)."""


def stream_of(outputs: int, inputs: int, groups: int, rows: int) -> dict[str, int] | None:
    """How a stream of FP8 codes multiplies ``rows`` rows; None: none does."""
    stream = STREAMS.get((outputs, inputs, groups))
    if stream is None or rows > min(stream.most, STREAM_ROWS[-1]):
        return None
    held = next(n for n in STREAM_ROWS if rows <= n)
    case = {"outputs": outputs, "inputs": inputs, "groups": groups, "rows": held}
    return case | {"pieces": stream.pieces, "warps": stream.warps, "depth": stream.depth, "blocks": stream.blocks}
