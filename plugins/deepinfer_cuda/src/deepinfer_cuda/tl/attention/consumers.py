"""The two warpgroups that attend: each has half of the columns of the output and scores every other tile of keys.

A tile is 64 keys of 512 bf16 values in two halves of 256 columns (``l``, ``r``), two tiles are in shared memory. For
the tiles 2j and 2j + 1::

    left                                        right
    scores of tile 2j                           scores of tile 2j + 1
    probabilities p0, maximum m0  -- p0_ready -> o_right += p0 . r0
    o_left += p0 . l0                          probabilities p1, maximum m1
    o_left += p1 . l1           <- p1_ready --
                                                o_right += p1 . r1

The running maximum goes from tile to tile in the order of the columns, whoever scores them, so a row has the same bits
in any batch. Each releases its half of a tile (``empty``) when its product with it is complete: whatever else used that
half was done before the probabilities came. That also says that p, m and masks of the tile may be overwritten, because
the next ones are written after both halves of the next tile have come.

With two segments a pair of blocks shares a row, each with half of its tiles. Each then sends one half of its
accumulators to the other one and merges the other half: the first block finishes the left columns, the second the
right ones.
"""

import functools
from typing import Any

import tilelang.language as T

from deepinfer_cuda.tl.attention.softmax import LOWEST, TILE, exp2, inverse_total, log_sum, on_hopper
from deepinfer_cuda.tl.attention.workspace import HALF, WIDTH

LEFT, RIGHT = 0, 1


def consumers(heads: Any, segments: int = 1, persistent: bool = False) -> tuple[Any, Any]:
    """Macros of the two warpgroups for one row. ``w`` is the block's ``Workspace``.

    :param segments: 1 or 2.
    :param persistent: A block does many rows, ``turn`` counts them, and queries may be overwritten from ``q_free`` on.
        Otherwise ``turn`` is 0.
    """
    hopper = on_hopper()
    # four warps of 16 rows each on every architecture: the exchange and the stores below rely on that layout
    gemm = functools.partial(T.wgmma_gemm if hopper else T.gemm, policy=T.GemmWarpPolicy.FullRow)

    @T.macro
    def settle():
        """Wait for the matrix products of this warpgroup."""
        if hopper:
            T.wait_wgmma(0)

    @T.macro
    def score(w, which, phase, s):
        T.barrier_wait(w.full[2 * which + LEFT], phase)
        T.fence_proxy_async()
        gemm(w.ql, w.k[which, 0, 0:TILE, 0:HALF], s, transpose_B=True, clear_accum=True)
        T.barrier_wait(w.full[2 * which + RIGHT], phase)
        T.fence_proxy_async()
        gemm(w.qr, w.k[which, 1, 0:TILE, 0:HALF], s, transpose_B=True)
        settle()

    @T.macro
    def soften(w, which, s, absent, base, scale, m, t, f, total):
        """Scores to probabilities; ``f`` is what sums of earlier tiles are multiplied by."""
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
        T.copy(s, w.p[which])
        T.copy(m, w.m[which])
        T.fence_proxy_async()
        T.barrier_arrive(w.p_ready[which])
        for i in T.Parallel(TILE):
            total[i] = total[i] * f[i] + t[i]

    @T.macro
    def follow(ms, m, t, f, total):
        """Take over the maximum of the other warpgroup's tile."""
        T.copy(ms, t)
        for i in T.Parallel(TILE):
            f[i] = exp2(m[i] - t[i])
            m[i] = t[i]
            total[i] *= f[i]

    @T.macro
    def rescale(o, f):
        for i, d in T.Parallel(TILE, HALF):
            o[i, d] *= f[i]

    @T.macro
    def store(o, out, row, head0, side):
        T.call_extern(
            "handle", "di::store_rows", o.data, T.access_ptr(out[row, head0, 0], "w"), side * HALF, WIDTH, heads - head0
        )

    @T.macro
    def begin(w, turn, o, m, total):
        T.clear(o)
        T.fill(m, LOWEST)
        T.clear(total)
        T.barrier_wait(w.q_ready, turn & 1)

    @T.macro
    def finish(w, side, turn, rank, row, head0, sink, has_sink, out, lse, o, m, t, f, total):
        T.copy(total, w.sums[side][(turn & 1) * TILE : (turn & 1) * TILE + TILE])
        T.barrier_arrive(w.sums_ready)
        T.barrier_wait(w.sums_ready, turn & 1)
        for i in T.Parallel(TILE):
            t[i] = total[i] + w.sums[1 - side][(turn & 1) * TILE + i]
        if segments == 2:
            T.cluster_arrive()
            T.cluster_wait()  # the other block has no more use for the tiles and maxima that are overwritten
            if rank != side:
                T.call_extern(
                    "handle", "di::send_rows", o.data, m.data, t.data, T.address_of(w.k[0, 0, 0, 0]),
                    T.address_of(w.k[0, 1, 0, 0]), T.address_of(w.m[0][0]), T.address_of(w.m[1][0]), 1 - rank,
                )  # fmt: skip
            T.cluster_arrive()
            T.cluster_wait()
            if rank == side:
                for i in T.Parallel(TILE):
                    f[i] = T.max(m[i], w.m[0][i])
                    total[i] = exp2(m[i] - f[i])
                    m[i] = f[i]
                    f[i] = exp2(w.m[0][i] - f[i])
                    t[i] = t[i] * total[i] + w.m[1][i] * f[i]
                    if side == LEFT and head0 + i < heads:
                        lse[row, head0 + i] = log_sum(t[i], m[i])
                    t[i] = inverse_total(t[i], m[i], sink, has_sink, T.min(head0 + i, heads - 1))
                    total[i] *= t[i]
                    f[i] *= t[i]
                T.call_extern(
                    "handle", "di::add_rows", o.data, total.data, f.data, T.address_of(w.k[0, 0, 0, 0]),
                    T.address_of(w.k[0, 1, 0, 0]),
                )  # fmt: skip
                store(o, out, row, head0, side)
        else:
            for i in T.Parallel(TILE):
                f[i] = inverse_total(t[i], m[i], sink, has_sink, T.min(head0 + i, heads - 1))
                if side == LEFT and head0 + i < heads:
                    lse[row, head0 + i] = log_sum(t[i], m[i])
            rescale(o, f)
            store(o, out, row, head0, side)

    @T.macro
    def left(w, turn, rank, row, head0, absent, first_key, tiles, scale, sink, has_sink, out, lse):
        o = T.alloc_fragment((TILE, HALF), "float32")
        s = T.alloc_fragment((TILE, TILE), "float32")
        m = T.alloc_fragment((TILE,), "float32")
        t = T.alloc_fragment((TILE,), "float32")
        f = T.alloc_fragment((TILE,), "float32")
        total = T.alloc_fragment((TILE,), "float32")
        begin(w, turn, o, m, total)
        pairs = T.ceildiv(tiles, 2)
        for j in T.serial(pairs):
            even = (turn * pairs + j) & 1
            odd = (turn * (tiles // 2) + j) & 1
            score(w, 0, even, s)
            if persistent and j == pairs - 1:
                T.barrier_arrive(w.q_free)
            soften(w, 0, s, absent, first_key + j * 2 * TILE, scale, m, t, f, total)
            rescale(o, f)
            T.sync_threads(9, 128)
            gemm(w.p[0], w.k[0, 0, 0:TILE, 0:HALF], o)
            settle()
            T.barrier_arrive(w.empty[LEFT])
            if j * 2 + 1 < tiles:
                T.barrier_wait(w.p_ready[1], odd)
                follow(w.m[1], m, t, f, total)
                rescale(o, f)
                T.barrier_wait(w.full[2 + LEFT], odd)
                T.fence_proxy_async()
                gemm(w.p[1], w.k[1, 0, 0:TILE, 0:HALF], o)
                settle()
                T.barrier_arrive(w.empty[2 + LEFT])
        finish(w, LEFT, turn, rank, row, head0, sink, has_sink, out, lse, o, m, t, f, total)

    @T.macro
    def right(w, turn, rank, row, head0, absent, first_key, tiles, scale, sink, has_sink, out, lse):
        o = T.alloc_fragment((TILE, HALF), "float32")
        s = T.alloc_fragment((TILE, TILE), "float32")
        m = T.alloc_fragment((TILE,), "float32")
        t = T.alloc_fragment((TILE,), "float32")
        f = T.alloc_fragment((TILE,), "float32")
        total = T.alloc_fragment((TILE,), "float32")
        begin(w, turn, o, m, total)
        pairs = T.ceildiv(tiles, 2)
        for j in T.serial(pairs):
            even = (turn * pairs + j) & 1
            odd = (turn * (tiles // 2) + j) & 1
            if j * 2 + 1 < tiles:
                # settled here and not after the rescaling below: the compiler serialises all products where
                # accumulators of one are touched while another one is under way
                score(w, 1, odd, s)
            if persistent and j == pairs - 1:
                T.barrier_arrive(w.q_free)
            T.barrier_wait(w.full[RIGHT], even)
            T.barrier_wait(w.p_ready[0], even)
            T.fence_proxy_async()
            follow(w.m[0], m, t, f, total)
            rescale(o, f)
            gemm(w.p[0], w.k[0, 1, 0:TILE, 0:HALF], o)
            if j * 2 + 1 < tiles:
                soften(w, 1, s, absent, first_key + j * 2 * TILE + TILE, scale, m, t, f, total)
                settle()
                T.barrier_arrive(w.empty[RIGHT])
                rescale(o, f)
                T.sync_threads(10, 128)
                gemm(w.p[1], w.k[1, 1, 0:TILE, 0:HALF], o)
                settle()
                T.barrier_arrive(w.empty[2 + RIGHT])
            else:
                settle()
                T.barrier_arrive(w.empty[RIGHT])
        finish(w, RIGHT, turn, rank, row, head0, sink, has_sink, out, lse, o, m, t, f, total)

    return left, right
