"""The compressor (``spec/kernels.md`` 2.2): a softmax over groups of ``ratio`` rows, and the ring of past rows.

A thread owns four channels of a row, all planes and all positions of them. So whatever order reading and writing of the
ring must have, it is the order within one thread: one launch serves each op, and nothing waits.
"""
# No postponed annotations: TileLang reads them as values.

from typing import Any

import tilelang.language as T

from deepinfer_cuda.jit import kernel
from deepinfer_cuda.tl.parts import numbers as nf

THREADS = 128
BATCH = 2
"""Rows on their way to a ring at a time."""
LANE = 4
"""Channels of a thread: 16 bytes of fp32."""

SIZES: list[dict[str, Any]] = [{"width": 512, "ratio": 2}, {"width": 64, "ratio": 2}]


def lanes_of(width: int) -> int:
    """Threads of a row; 0 where rows of ``width`` do not divide so."""
    lanes, rest = divmod(width, LANE)
    return lanes if not rest and lanes and (THREADS % lanes == 0 or lanes % THREADS == 0) else 0


def _geometry(width: int) -> tuple[int, int, int]:
    """Threads of a block, threads of a row, rows of a block."""
    lanes = lanes_of(width)
    if not lanes or lanes > 1024:
        raise ValueError(f"rows of {width} channels have no layout")
    threads = max(THREADS, lanes)
    return threads, lanes, threads // lanes


@T.macro
def combine(result, scores, latents, ratio):
    """``result[4]``: per channel, latents weighted by the softmax of the scores; terms are added in token order."""
    total = T.alloc_local((1,), "float32")
    peak = T.alloc_local((1,), "float32")
    weight = T.alloc_local((1,), "float32")
    for c in list(range(LANE)):
        peak[0] = scores[c]
        for m in list(range(1, ratio)):
            peak[0] = T.max(peak[0], scores[m * LANE + c])
        total[0] = T.float32(0)
        result[c] = T.float32(0)
        for m in list(range(ratio)):
            weight[0] = T.exp(scores[m * LANE + c] - peak[0])
            total[0] = total[0] + weight[0]
            result[c] = result[c] + weight[0] * latents[m * LANE + c]
        result[c] = T.ieee_fdiv(result[c], total[0])


@T.macro
def put_result(out, row, at, result, dtype):
    if dtype == "bfloat16":
        packed = T.alloc_local((2,), "uint32")
        packed[0] = nf.pack(result[0], result[1])
        packed[1] = nf.pack(result[2], result[3])
        T.stg64(out[row, at], packed[0:2])
    else:
        for c in T.vectorized(LANE):
            out[row, at + c] = result[c]


@kernel(cases=[size | {"dtype": "bfloat16"} for size in SIZES], pass_configs={"tl.disable_safe_memory_legalize": True})
def compress_decode(*, width: int, ratio: int, dtype: str):
    """Rows to their ring; a row that completes a group yields the group's entry, another one zeros.

    Rows of one sequence must follow each other in order of position: earlier members of a group are read from the rows
    before, where they are of this step, and from the ring where they are not. That is the order of decode rows.
    """
    threads, lanes, side = _geometry(width)
    n, sn, ln, slots, ring, slot_stride = T.dynamic("n, sn, ln, slots, ring, slot_stride")

    @T.prim_func
    def compress_decode(
        score: T.StridedTensor((n, width), (sn, 1), "float32"),
        latent: T.StridedTensor((n, width), (ln, 1), "float32"),
        state: T.StridedTensor((slots, ring, 2, width), (slot_stride, 2 * width, width, 1), "float32"),
        state_slot: T.Tensor((n,), "int32"),
        context: T.Tensor((n,), "int32"),
        out: T.Tensor((n, width), dtype),
    ):
        with T.Kernel(T.ceildiv(n, side), threads=threads, prelude=nf.NUMBERS) as block:
            t = T.get_thread_binding()
            row = block * side + t // lanes
            at = t % lanes * LANE
            scores = T.alloc_local((ratio * LANE,), "float32")
            latents = T.alloc_local((ratio * LANE,), "float32")
            result = T.alloc_local((LANE,), "float32")
            slot = T.alloc_local((1,), "int32")
            length = T.alloc_local((1,), "int32")
            before = T.alloc_local((1,), "int32")
            last = (ratio - 1) * LANE
            T.pdl_sync()
            T.pdl_trigger()
            if row < n:
                slot[0] = state_slot[row]
                length[0] = context[row]
                scores[last : last + 4] = T.reinterpret(T.ldg128(score[row, at]), "float32x4")
                latents[last : last + 4] = T.reinterpret(T.ldg128(latent[row, at]), "float32x4")
                for c in list(range(LANE)):
                    result[c] = T.float32(0)
                if slot[0] >= 0 and length[0] > 0:
                    place = T.truncmod(length[0] - 1, ring)
                    T.stg128(state[slot[0], place, 0, at], T.reinterpret(scores[last : last + 4], "uint32x4"))
                    T.stg128(state[slot[0], place, 1, at], T.reinterpret(latents[last : last + 4], "uint32x4"))
                    if T.truncmod(length[0], ratio) == 0:
                        for m in list(range(ratio - 1)):
                            back = ratio - 1 - m
                            before[0] = 0
                            if row >= back:  # noqa: SIM102  (rows before the first are not to be read)
                                if state_slot[row - back] == slot[0] and context[row - back] == length[0] - back:
                                    before[0] = 1
                            i = m * LANE
                            if before[0] != 0:
                                scores[i : i + 4] = T.reinterpret(T.ldg128(score[row - back, at]), "float32x4")
                                latents[i : i + 4] = T.reinterpret(T.ldg128(latent[row - back, at]), "float32x4")
                            else:
                                old = T.truncmod(length[0] - 1 - back, ring)
                                scores[i : i + 4] = T.reinterpret(T.ldg128(state[slot[0], old, 0, at]), "float32x4")
                                latents[i : i + 4] = T.reinterpret(T.ldg128(state[slot[0], old, 1, at]), "float32x4")
                        combine(result, scores, latents, ratio)
                put_result(out, row, at, result, dtype)

    return compress_decode


@kernel(
    cases=[size | {"dtype": "bfloat16", "permuted": False} for size in SIZES],
    pass_configs={"tl.disable_safe_memory_legalize": True},
)
def compress_prefill(*, width: int, ratio: int, dtype: str, permuted: bool):
    """Entries completed by a chunk of each sequence, then the chunk's last rows to the ring.

    Only the first entry of a chunk has members from before it, and every sequence has at least one output row: so the
    threads of that row read the ring and then write it.
    """
    threads, lanes, side = _geometry(width)
    n, sn, ln, slots, ring, slot_stride, seqs, bounds, sc = T.dynamic(
        "n, sn, ln, slots, ring, slot_stride, seqs, bounds, sc"
    )
    perm_type = T.Tensor((n,), "int32") if permuted else T.int32

    @T.prim_func
    def compress_prefill(
        score: T.StridedTensor((n, width), (sn, 1), "float32"),
        latent: T.StridedTensor((n, width), (ln, 1), "float32"),
        state: T.StridedTensor((slots, ring, 2, width), (slot_stride, 2 * width, width, 1), "float32"),
        state_slot: T.Tensor((seqs,), "int32"),
        row_seq: T.Tensor((sc,), "int32"),
        cu_q: T.Tensor((bounds,), "int32"),
        cu_k: T.Tensor((bounds,), "int32"),
        cu_c: T.Tensor((bounds,), "int32"),
        perm: perm_type,
        out: T.Tensor((sc, width), dtype),
    ):
        with T.Kernel(T.ceildiv(sc, side), threads=threads, prelude=nf.NUMBERS) as block:
            T.annotate_min_blocks_per_sm(12 * THREADS // threads)  # all blocks of a chunk at once
            t = T.get_thread_binding()
            row = block * side + t // lanes
            at = t % lanes * LANE
            scores = T.alloc_local((ratio * LANE,), "float32")
            latents = T.alloc_local((ratio * LANE,), "float32")
            result = T.alloc_local((LANE,), "float32")
            moved = T.alloc_local((8 * BATCH,), "uint32")
            seq = T.alloc_local((1,), "int32")
            first = T.alloc_local((1,), "int32")  # row of the chunk's first token
            count = T.alloc_local((1,), "int32")  # rows of the chunk
            end = T.alloc_local((1,), "int32")
            begin = T.alloc_local((1,), "int32")
            group = T.alloc_local((1,), "int32")
            slot = T.alloc_local((1,), "int32")
            source = T.alloc_local((1,), "int32")
            is_first = T.alloc_local((1,), "int32")
            T.pdl_sync()
            T.pdl_trigger()
            if row < sc:
                seq[0] = row_seq[row]
                first[0] = cu_q[seq[0]]
                count[0] = cu_q[seq[0] + 1] - first[0]
                end[0] = cu_k[seq[0] + 1] - cu_k[seq[0]]
                begin[0] = end[0] - count[0]
                group[0] = T.truncdiv(begin[0], ratio) + row - cu_c[seq[0]]
                is_first[0] = T.if_then_else(row == cu_c[seq[0]], 1, 0)
                slot[0] = state_slot[seq[0]]
                for c in list(range(LANE)):
                    result[c] = T.float32(0)
                if (group[0] + 1) * ratio <= end[0]:
                    for m in list(range(ratio)):
                        i = m * LANE
                        source[0] = group[0] * ratio + m - begin[0]
                        if source[0] >= 0:
                            source[0] = source[0] + first[0]
                            if permuted:
                                source[0] = perm[source[0]]
                            scores[i : i + 4] = T.reinterpret(T.ldg128(score[source[0], at]), "float32x4")
                            latents[i : i + 4] = T.reinterpret(T.ldg128(latent[source[0], at]), "float32x4")
                        else:
                            old = T.truncmod(group[0] * ratio + m, ring)
                            scores[i : i + 4] = T.reinterpret(T.ldg128(state[slot[0], old, 0, at]), "float32x4")
                            latents[i : i + 4] = T.reinterpret(T.ldg128(state[slot[0], old, 1, at]), "float32x4")
                    combine(result, scores, latents, ratio)
                put_result(out, row, at, result, dtype)
                if is_first[0] != 0:
                    for batch in T.serial(T.ceildiv(T.min(count[0], ring), BATCH)):
                        for i in list(range(BATCH)):
                            back = batch * BATCH + i
                            source[0] = first[0] + count[0] - 1 - T.min(back, count[0] - 1)
                            if permuted:
                                source[0] = perm[source[0]]
                            moved[8 * i : 8 * i + 4] = T.ldg128(score[source[0], at])
                            moved[8 * i + 4 : 8 * i + 8] = T.ldg128(latent[source[0], at])
                        for i in list(range(BATCH)):
                            back = batch * BATCH + i
                            if back < T.min(count[0], ring):
                                place = T.truncmod(end[0] - 1 - back, ring)
                                T.stg128(state[slot[0], place, 0, at], moved[8 * i : 8 * i + 4])
                                T.stg128(state[slot[0], place, 1, at], moved[8 * i + 4 : 8 * i + 8])

    return compress_prefill


@kernel(cases=[{"width": size["width"]} for size in SIZES], pass_configs={"tl.disable_safe_memory_legalize": True})
def ring_copy(*, width: int):
    """``count`` positions before ``last`` from one ring to another of a different size."""
    threads, lanes, side = _geometry(2 * width)
    here, there = T.dynamic("here, there")

    @T.prim_func
    def ring_copy(
        source: T.Tensor((here, 2 * width), "float32"),
        target: T.Tensor((there, 2 * width), "float32"),
        last: T.int32,
        count: T.int32,
    ):
        with T.Kernel(T.ceildiv(count, side), threads=threads) as block:
            t = T.get_thread_binding()
            i = block * side + t // lanes
            at = t % lanes * LANE
            moved = T.alloc_local((4,), "uint32")
            if i < count:
                moved[0:4] = T.ldg128(source[T.truncmod(last - 1 - i, here), at])
                T.stg128(target[T.truncmod(last - 1 - i, there), at], moved[0:4])

    return ring_copy
