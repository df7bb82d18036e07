"""Attention of narrow heads, one warpgroup a row: the shipped checkpoint's sizes, and any width but 512.

A block takes up to 64 heads of one row and visits tiles of 64 keys in the order of their columns. Nothing overlaps:
what counts here is that the semantics are those of the wide kernels. Heads past the last are computed and not stored.
"""

from typing import Any

import tilelang.language as T

from deepinfer_cuda.tl.attention.places import COLUMNS, in_buffer, in_caches
from deepinfer_cuda.tl.attention.softmax import LOWEST, TILE, exp2, inverse_total, log_sum


def _value(cache: Any, at: Any, d: Any, width: int, fmt: str) -> Any:
    """fp32 value ``d`` of the entry that begins at byte ``at``."""
    if fmt == "v41":
        code, scale = T.cast(cache[at + d], "uint32"), T.cast(cache[at + width + d // 32], "uint32")
        return T.call_pure_extern("float32", "di_e4m3", code) * T.call_pure_extern("float32", "di_ue8m0", scale)
    pair, scale = T.cast(cache[at + d // 2], "uint32"), T.cast(cache[at + width // 2 + d // 16], "uint32")
    value = T.call_pure_extern("float32", "di::e2m1_value", pair >> T.cast(d % 2 * 4, "uint32"))
    return value * T.call_pure_extern("float32", "di_e4m3", scale)


def _attend(heads: Any, width: int) -> tuple[Any, Any]:
    """Macros over a tile of keys in shared memory, and for the end of a row."""

    @T.macro
    def visit(q_tile, keys, absent, base, probs, o, s, m, t, f, total, scale):
        T.gemm(q_tile, keys, s, transpose_B=True, clear_accum=True)
        for i, n in T.Parallel(TILE, TILE):
            s[i, n] = T.if_then_else(absent[base + n] < 0, -T.infinity("float32"), s[i, n] * scale)
        T.reduce_max(s, t, dim=1)
        for i in T.Parallel(TILE):
            t[i] = T.max(m[i], t[i])
            f[i] = exp2(m[i] - t[i])
            m[i] = t[i]
        for i, n in T.Parallel(TILE, TILE):
            s[i, n] = exp2(s[i, n] - m[i])
        T.reduce_sum(s, t, dim=1)
        T.copy(s, probs)
        for i in T.Parallel(TILE):
            total[i] = total[i] * f[i] + t[i]
        for i, d in T.Parallel(TILE, width):
            o[i, d] *= f[i]
        T.gemm(probs, keys, o)

    @T.macro
    def finish(row, head0, o, m, f, total, sink, has_sink, out, lse):
        for i in T.Parallel(TILE):
            f[i] = inverse_total(total[i], m[i], sink, has_sink, T.min(head0 + i, heads - 1))
            if head0 + i < heads:
                lse[row, head0 + i] = log_sum(total[i], m[i])
        for i, d in T.Parallel(TILE, width):
            o[i, d] *= f[i]
        for i, d in T.Parallel(TILE, width):
            if head0 + i < heads:
                out[row, head0 + i, d] = o[i, d]

    return visit, finish


def narrow_decode(
    heads: Any, k1: Any, k2: Any, *, width: int, window_format: str, extra_format: str, sizes: Any
) -> Any:  # fmt: skip
    """A macro: what the block of a row and of ``TILE`` heads does."""
    locate = in_caches(threads=128, **sizes)
    visit, finish = _attend(heads, width)

    @T.macro
    def bring(cache, places, base, keys, fmt):
        for i, d in T.Parallel(TILE, width):
            at = places[base + i]
            keys[i, d] = T.cast(
                T.if_then_else(at >= 0, _value(cache, T.max(at, T.int64(0)), d, width, fmt), T.float32(0)), "bfloat16"
            )

    @T.macro
    def attend(
        group, row, q, window, idx, lengths, extra, extra_idx, extra_lengths, sink, out, lse, window_page,
        window_stride, extra_page, extra_stride, has_lengths, has_extra_lengths, has_sink, scale,
    ):  # fmt: skip
        places = T.alloc_shared((COLUMNS,), "int64")
        absent = T.alloc_shared((COLUMNS,), "int32")
        q_tile = T.alloc_shared((TILE, width), "bfloat16")
        keys = T.alloc_shared((TILE, width), "bfloat16")
        probs = T.alloc_shared((TILE, TILE), "bfloat16")
        o = T.alloc_fragment((TILE, width), "float32")
        s = T.alloc_fragment((TILE, TILE), "float32")
        m = T.alloc_fragment((TILE,), "float32")
        t = T.alloc_fragment((TILE,), "float32")
        f = T.alloc_fragment((TILE,), "float32")
        total = T.alloc_fragment((TILE,), "float32")
        split = T.ceildiv(k1, TILE)
        tiles = split + T.ceildiv(k2, TILE)
        locate(
            T.get_thread_binding(), row, 0, tiles, split, places, absent, idx, k1, lengths, has_lengths,
            window_page, window_stride, extra_idx, k2, extra_lengths, has_extra_lengths, extra_page, extra_stride,
            window, extra,
        )  # fmt: skip
        for i, d in T.Parallel(TILE, width):
            q_tile[i, d] = T.if_then_else(
                group * TILE + i < heads, q[row, T.min(group * TILE + i, heads - 1), d], T.bfloat16(0)
            )
        T.clear(o)
        T.fill(m, LOWEST)
        T.clear(total)
        for tile in T.serial(tiles):
            if tile < split:
                bring(window, places, tile * TILE, keys, window_format)
            elif extra_format:
                bring(extra, places, tile * TILE, keys, extra_format)
            visit(q_tile, keys, absent, tile * TILE, probs, o, s, m, t, f, total, scale)
        finish(row, group * TILE, o, m, f, total, sink, has_sink, out, lse)

    return attend


def narrow_prefill(heads: Any, keys_count: Any, k: Any, *, width: int) -> Any:
    """The same with rows of a bf16 buffer as keys."""
    locate = in_buffer(threads=128)
    visit, finish = _attend(heads, width)

    @T.macro
    def attend(row, group, q, kv, indices, lengths, sink, out, lse, has_lengths, has_sink, scale):
        places = T.alloc_shared((COLUMNS,), "int32")
        q_tile = T.alloc_shared((TILE, width), "bfloat16")
        keys = T.alloc_shared((TILE, width), "bfloat16")
        probs = T.alloc_shared((TILE, TILE), "bfloat16")
        o = T.alloc_fragment((TILE, width), "float32")
        s = T.alloc_fragment((TILE, TILE), "float32")
        m = T.alloc_fragment((TILE,), "float32")
        t = T.alloc_fragment((TILE,), "float32")
        f = T.alloc_fragment((TILE,), "float32")
        total = T.alloc_fragment((TILE,), "float32")
        tiles = T.ceildiv(k, TILE)
        locate(T.get_thread_binding(), row, tiles, places, 0, indices, k, keys_count, lengths, has_lengths)
        for i, d in T.Parallel(TILE, width):
            q_tile[i, d] = T.if_then_else(
                group * TILE + i < heads, q[row, T.min(group * TILE + i, heads - 1), d], T.bfloat16(0)
            )
        T.clear(o)
        T.fill(m, LOWEST)
        T.clear(total)
        for tile in T.serial(tiles):
            for i, d in T.Parallel(TILE, width):
                at = places[tile * TILE + i]
                keys[i, d] = T.if_then_else(at >= 0, kv[T.max(at, 0), d], T.bfloat16(0))
            visit(q_tile, keys, places, tile * TILE, probs, o, s, m, t, f, total, scale)
        finish(row, group * TILE, o, m, f, total, sink, has_sink, out, lse)

    return attend
