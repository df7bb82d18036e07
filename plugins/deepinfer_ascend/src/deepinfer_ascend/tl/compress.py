"""The compressor: entries of groups of tokens, and the ring of past rows (``compress.*``; ``spec/kernels.md`` 2.2).

State is fp32, flat: a slot begins ``stride`` values behind the one before and is ``[ring, 2, width]``, of a position
the score, then the latent. What reads the ring and what writes it are kernels of their own: a chunk's entries read what
was there before the chunk, a decode step's what it wrote.
"""

import tilelang.ascend.language as T

from deepinfer_ascend.chip import VECTOR_CORES
from deepinfer_ascend.jit.registry import kernel


def place(slot, position, plane: int, ring, stride, width: int):
    """Where a slot has a position's score (plane 0) or latent (1)."""
    return T.cast(slot, T.int64) * stride + T.cast((position % ring * 2 + plane) * width, T.int64)


@T.macro
def weighed(out, row, i, scores, latents, ratio: int):
    """``out[row, i]``: latents ``[ratio]`` by the softmax of their scores, summed in the order of tokens."""
    peak = T.alloc_local((1,), T.float32)
    total = T.alloc_local((1,), T.float32)
    sum_ = T.alloc_local((1,), T.float32)
    peak[0] = scores[0]
    for m in T.serial(1, ratio):
        peak[0] = T.max(peak[0], scores[m])
    total[0] = T.exp(scores[0] - peak[0])
    sum_[0] = total[0] * latents[0]
    for m in T.serial(1, ratio):
        total[0] = total[0] + T.exp(scores[m] - peak[0])
        sum_[0] = sum_[0] + T.exp(scores[m] - peak[0]) * latents[m]
    out[row, i] = sum_[0] / total[0]


@kernel
def compress_chunk(*, width: int, ratio: int, dtype: str = "bfloat16", threads: int = 128):
    """Entries that chunks complete: ``out`` ``[entries, width]``, zeros where a reserved row has none.

    ``score``, ``latent`` fp32 ``[tokens, width]``, token t of the chunks in row ``order[t]``; ``sequence`` int32
    ``[entries]``; ``first_row``, ``ends`` and ``first_entry`` int32 ``[sequences + 1]``, running sums of rows, of
    lengths and of reserved entries; ``state_slot`` int32 ``[sequences]``.
    """
    tokens, entries, n, size = T.dynamic("tokens"), T.dynamic("entries"), T.dynamic("n"), T.dynamic("size")

    @T.prim_func
    def compress_chunk(
        score: T.Tensor((tokens, width), T.float32),
        latent: T.Tensor((tokens, width), T.float32),
        order: T.Tensor((tokens,), T.int32),
        state: T.Tensor((size,), T.float32),
        state_slot: T.Tensor((n,), T.int32),
        sequence: T.Tensor((entries,), T.int32),
        first_row: T.Tensor((n + 1,), T.int32),
        ends: T.Tensor((n + 1,), T.int32),
        first_entry: T.Tensor((n + 1,), T.int32),
        out: T.Tensor((entries, width), dtype),
        ring: T.int32,
        stride: T.int64,
    ):
        with T.Kernel(VECTOR_CORES) as core, T.SimtVF(threads=threads):
            lane = T.get_thread_binding()
            scores = T.alloc_local((ratio,), T.float32)
            latents = T.alloc_local((ratio,), T.float32)
            # What is needed more than once: the passes expand what is no variable.
            begin, end, first, position, token = (T.alloc_local((1,), T.int32) for _ in range(5))
            at = T.alloc_local((1,), T.int64)
            for step in T.serial(T.ceildiv(entries, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < entries:
                    s = sequence[row]
                    end[0] = ends[s + 1] - ends[s]
                    begin[0] = end[0] - (first_row[s + 1] - first_row[s])
                    first[0] = (begin[0] // ratio + row - first_entry[s]) * ratio
                    for turn in T.serial(T.ceildiv(width, threads)):
                        i = turn * threads + lane
                        if i < width:
                            if first[0] + ratio <= end[0]:
                                for m in T.serial(ratio):
                                    position[0] = first[0] + m
                                    if position[0] >= begin[0]:
                                        token[0] = order[first_row[s] + position[0] - begin[0]]
                                        scores[m] = score[token[0], i]
                                        latents[m] = latent[token[0], i]
                                    else:
                                        at[0] = place(state_slot[s], position[0], 0, ring, stride, width) + i
                                        scores[m] = state[at[0]]
                                        latents[m] = state[at[0] + width]
                                weighed(out, row, i, scores, latents, ratio)
                            else:
                                out[row, i] = T.cast(0, dtype)

    return compress_chunk


@kernel
def compress_step(*, width: int, ratio: int, dtype: str = "bfloat16", threads: int = 128):
    """Entries that decode rows complete, from the ring that has them already: ``out`` ``[rows, width]``, else zeros.
    ``state_slot`` int32 ``[rows]``, negative for no row; ``lengths`` int32 ``[rows]``, its position and one."""
    rows, size = T.dynamic("rows"), T.dynamic("size")

    @T.prim_func
    def compress_step(
        state: T.Tensor((size,), T.float32),
        state_slot: T.Tensor((rows,), T.int32),
        lengths: T.Tensor((rows,), T.int32),
        out: T.Tensor((rows, width), dtype),
        ring: T.int32,
        stride: T.int64,
    ):
        with T.Kernel(VECTOR_CORES) as core, T.SimtVF(threads=threads):
            lane = T.get_thread_binding()
            scores = T.alloc_local((ratio,), T.float32)
            latents = T.alloc_local((ratio,), T.float32)
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < rows:
                    for turn in T.serial(T.ceildiv(width, threads)):
                        i = turn * threads + lane
                        if i < width:
                            # Lengths below the ratio complete nothing, so no position is negative.
                            if state_slot[row] >= 0 and lengths[row] > 0 and lengths[row] % ratio == 0:
                                for m in T.serial(ratio):
                                    position = lengths[row] - ratio + m
                                    scores[m] = state[place(state_slot[row], position, 0, ring, stride, width) + i]
                                    latents[m] = state[place(state_slot[row], position, 1, ring, stride, width) + i]
                                weighed(out, row, i, scores, latents, ratio)
                            else:
                                out[row, i] = T.cast(0, dtype)

    return compress_step


@kernel
def ring_chunk(*, width: int, threads: int = 128):
    """The last ``ring`` rows of each chunk into its slot; the arguments of ``compress_chunk``."""
    tokens, n, size = T.dynamic("tokens"), T.dynamic("n"), T.dynamic("size")

    @T.prim_func
    def ring_chunk(
        score: T.Tensor((tokens, width), T.float32),
        latent: T.Tensor((tokens, width), T.float32),
        order: T.Tensor((tokens,), T.int32),
        state: T.Tensor((size,), T.float32),
        state_slot: T.Tensor((n,), T.int32),
        first_row: T.Tensor((n + 1,), T.int32),
        ends: T.Tensor((n + 1,), T.int32),
        ring: T.int32,
        stride: T.int64,
    ):
        with T.Kernel(VECTOR_CORES) as core, T.SimtVF(threads=threads):
            lane = T.get_thread_binding()
            for step in T.serial(T.ceildiv(n * ring, VECTOR_CORES)):
                work = step * VECTOR_CORES + core
                if work < n * ring:
                    s, back = work // ring, work % ring
                    if back < first_row[s + 1] - first_row[s]:
                        row = order[first_row[s + 1] - 1 - back]
                        position = ends[s + 1] - ends[s] - 1 - back
                        for turn in T.serial(T.ceildiv(width, threads)):
                            i = turn * threads + lane
                            if i < width:
                                state[place(state_slot[s], position, 0, ring, stride, width) + i] = score[row, i]
                                state[place(state_slot[s], position, 1, ring, stride, width) + i] = latent[row, i]

    return ring_chunk


@kernel
def ring_step(*, width: int, threads: int = 128):
    """Each decode row into its slot; the arguments of ``compress_step``. No two rows have one place."""
    rows, size = T.dynamic("rows"), T.dynamic("size")

    @T.prim_func
    def ring_step(
        score: T.Tensor((rows, width), T.float32),
        latent: T.Tensor((rows, width), T.float32),
        state: T.Tensor((size,), T.float32),
        state_slot: T.Tensor((rows,), T.int32),
        lengths: T.Tensor((rows,), T.int32),
        ring: T.int32,
        stride: T.int64,
    ):
        with T.Kernel(VECTOR_CORES) as core, T.SimtVF(threads=threads):
            lane = T.get_thread_binding()
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < rows and state_slot[row] >= 0 and lengths[row] > 0:
                    position = lengths[row] - 1
                    for turn in T.serial(T.ceildiv(width, threads)):
                        i = turn * threads + lane
                        if i < width:
                            state[place(state_slot[row], position, 0, ring, stride, width) + i] = score[row, i]
                            state[place(state_slot[row], position, 1, ring, stride, width) + i] = latent[row, i]

    return ring_step


@kernel
def ring_copy(*, width: int, threads: int = 128):
    """The ``count`` positions before ``end`` from ring ``src`` fp32 ``[large, 2, width]`` to ``dst``
    ``[small, 2, width]``, each at its position mod the size of its ring."""
    large, small = T.dynamic("large"), T.dynamic("small")

    @T.prim_func
    def ring_copy(
        src: T.Tensor((large, 2, width), T.float32),
        dst: T.Tensor((small, 2, width), T.float32),
        count: T.int32,
        end: T.int32,
    ):
        with T.Kernel(VECTOR_CORES) as core, T.SimtVF(threads=threads):
            lane = T.get_thread_binding()
            for step in T.serial(T.ceildiv(count * 2, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < count * 2:
                    position = end - count + row // 2
                    for turn in T.serial(T.ceildiv(width, threads)):
                        i = turn * threads + lane
                        if i < width:
                            dst[position % small, row % 2, i] = src[position % large, row % 2, i]

    return ring_copy
