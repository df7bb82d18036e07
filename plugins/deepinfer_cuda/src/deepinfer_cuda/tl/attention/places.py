"""Where the keys of a row lie, worked out once: a table in shared memory that producers and masks read."""

from __future__ import annotations

from typing import Any

import tilelang.language as T

from deepinfer_cuda.tl.attention.softmax import TILE

COLUMNS = 20 * TILE
"""Columns that a block has room for, each source padded to whole tiles."""
ENTRY_BYTES = {
    "v41": lambda width: width + width // 32,
    "v41_fp4": lambda width: width // 2 + width // 16,
}


def entry_bytes(fmt: str, width: int) -> int:
    """Bytes of an entry; 0 for "", no cache."""
    return ENTRY_BYTES[fmt](width) if fmt else 0


def in_caches(*, threads: int, window_bytes: int, extra_bytes: int) -> Any:
    """A macro that fills ``places`` (bytes from the beginning of the cache, -1: no key) and ``absent`` (-1: no key) of
    ``tiles`` tiles from tile ``begin`` on; tiles below ``split`` are the window's."""

    @T.macro
    def locate(
        tx, row, begin, tiles, split, places, absent, idx, k1, lengths, has_lengths, page, stride,
        extra_idx, k2, extra_lengths, has_extra_lengths, extra_page, extra_stride, window, extra,
    ):  # fmt: skip
        for step in T.serial(T.ceildiv(tiles * TILE, threads)):
            i = step * threads + tx
            if i < tiles * TILE:
                place = T.alloc_var("int64", init=T.int64(-1))
                if i < split * TILE:
                    c = begin * TILE + i
                    if c < k1:
                        slot = idx[row, c]
                        if slot >= 0 and (has_lengths == 0 or c < lengths[T.if_then_else(has_lengths == 0, 0, row)]):
                            unit = T.truncdiv(slot, page)
                            place = T.cast(unit, "int64") * stride + T.cast(
                                (slot - unit * page) * window_bytes, "int64"
                            )
                if extra_bytes > 0:
                    e = i - split * TILE
                    if e >= 0 and e < k2:
                        slot = extra_idx[row, e]
                        if slot >= 0 and (
                            has_extra_lengths == 0 or e < extra_lengths[T.if_then_else(has_extra_lengths == 0, 0, row)]
                        ):
                            unit = T.truncdiv(slot, extra_page)
                            entry = slot - unit * extra_page
                            place = T.cast(unit, "int64") * extra_stride + T.cast(entry * extra_bytes, "int64")
                # all keys of the row set out for the second-level cache at once; without it each load waits for memory
                if place >= 0:
                    if i < split * TILE:
                        T.call_extern("handle", "di::prefetch_entry", T.address_of(window[0]), place, window_bytes)
                    elif extra_bytes > 0:
                        T.call_extern("handle", "di::prefetch_entry", T.address_of(extra[0]), place, extra_bytes)
                places[i] = place
                absent[i] = T.if_then_else(place < 0, -1, 0)

    return locate


def in_buffer(*, threads: int) -> Any:
    """As :func:`in_caches` for rows of a key buffer: ``places`` from ``base`` on are rows (int32), -1: no key."""

    @T.macro
    def locate(tx, row, tiles, places, base, indices, k, keys, lengths, has_lengths):
        for step in T.serial(T.ceildiv(tiles * TILE, threads)):
            i = step * threads + tx
            if i < tiles * TILE:
                place = T.alloc_var("int32", init=T.int32(-1))
                if i < k:
                    at = indices[row, i]
                    if (
                        at >= 0
                        and at < keys
                        and (has_lengths == 0 or i < lengths[T.if_then_else(has_lengths == 0, 0, row)])
                    ):
                        place = at
                places[base + i] = place

    return locate
