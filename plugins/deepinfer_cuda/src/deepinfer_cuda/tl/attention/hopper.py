"""Attention at head width 512 on Hopper: calls of ``cached.cuh`` and ``gathered.cuh``, which have what a block does.

These are CUDA text and not TileLang: one copy of the code for both warpgroups that multiply, named barriers where two
warpgroups take different ways through it, accumulators under way across branches, writes to the neighbour that its
barriers count. ``wide_decode.py`` and ``wide_prefill.py`` do the same for other architectures.
"""

from typing import Any

import tilelang.language as T

ROOM_BYTES = 227_328
"""Shared memory of a block; the text checks that it suffices."""
_ENTRY = {"v41": "di::V41", "v41_fp4": "di::V41Fp4"}


def hopper_decode(
    heads: Any, rows: Any, k1: Any, k2: Any, q_stride: Any, *, segments: int, window_format: str, extra_format: str
) -> Any:
    """A macro: what one of the blocks does that share the rows of a group of heads."""
    first, other = _ENTRY[window_format], _ENTRY[extra_format or window_format]

    @T.macro
    def attend(
        block, row, q, window, idx, lengths, extra, extra_idx, extra_lengths, sink, out, lse, window_page,
        window_stride, extra_page, extra_stride, has_lengths, has_extra_lengths, has_sink, scale,
    ):  # fmt: skip
        room = T.alloc_shared((ROOM_BYTES,), "uint8")
        T.pdl_sync()
        T.pdl_trigger()
        T.call_extern(
            "handle", f"di::attend<{first}, {other}, {segments}, {ROOM_BYTES}>", T.address_of(room[0]),
            T.address_of(q[0, 0, 0]), T.address_of(window[0]), T.address_of(extra[0]), T.address_of(idx[0, 0]),
            T.address_of(lengths[0]), T.address_of(extra_idx[0, 0]), T.address_of(extra_lengths[0]),
            T.address_of(sink[0]), T.address_of(out[0, 0, 0]), T.address_of(lse[0, 0]), rows, heads, k1, k2,
            window_page, window_stride, extra_page, extra_stride, has_lengths, has_extra_lengths, has_sink, q_stride,
            scale,
        )  # fmt: skip

    return attend


def hopper_prefill(heads: Any, rows: Any, keys_count: Any, k: Any, q_stride: Any) -> Any:
    """The same with rows of a bf16 buffer as keys, a block a row."""

    @T.macro
    def attend(block, group, blocks, q, kv, indices, lengths, sink, out, lse, has_lengths, has_sink, scale):
        room = T.alloc_shared((ROOM_BYTES,), "uint8")
        T.pdl_sync()
        T.pdl_trigger()
        T.call_extern(
            "handle", f"di::attend_gathered<{ROOM_BYTES}>", T.address_of(room[0]), T.address_of(q[0, 0, 0]),
            T.address_of(kv[0, 0]), T.address_of(indices[0, 0]), T.address_of(lengths[0]), T.address_of(sink[0]),
            T.address_of(out[0, 0, 0]), T.address_of(lse[0, 0]), rows, heads, keys_count, k, has_lengths, has_sink,
            q_stride, scale,
        )  # fmt: skip

    return attend
