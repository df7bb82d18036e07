"""Tokens and lengths of a step that continues one whose results only the device knows (``meta.feed_tokens``,
``meta.correct_lengths``, ``meta.verify_lengths``, ``meta.draft_inputs``; ``spec/engine.md`` 5.4, 6.4, 7.4)."""

import tilelang.ascend.language as T

from deepinfer_ascend.chip import VECTOR_CORES
from deepinfer_ascend.jit.registry import kernel
from deepinfer_ascend.tl.numbers import is_nan

MOST_DRAFTS = 8192
"""Confidences that a core holds."""


@kernel
def feed_rows(*, drafts: int, grams: int, threads: int = 128):
    """``ids`` int32 ``[rows]`` and their n-grams ``[rows, grams]``, newest first (``grams`` 0: none).

    All int32: ``fresh`` ``[n, drafts + 1]``, ``seqlens_q`` and ``remap`` ``[n]``, ``sampled`` and ``accepted`` ``[m]``,
    ``guesses`` ``[m, drafts]`` of the step before, ``win`` ``[n, drafts + grams - 1]``, ``table`` ``[known]``. Ids out
    of ``0 .. vocabulary - 1`` from the step before become the last; from the end of the look-back on there is ``pad``.
    """
    n, m, rows, known = T.dynamic("n"), T.dynamic("m"), T.dynamic("rows"), T.dynamic("known")
    back, columns, wide = max(grams - 1, 0), drafts + 1, max(drafts + grams - 1, 1)

    @T.macro
    def token_of(token, fresh, remap, sampled, guesses, request, j, last):
        if remap[request] < 0:
            token[0] = fresh[request, j]
        else:
            source = T.min(remap[request], m - 1)
            if drafts > 0 and j > 0:
                token[0] = guesses[source, T.max(j - 1, 0)]
            else:
                token[0] = sampled[source]
            if token[0] < 0 or token[0] > last:
                token[0] = last

    @T.prim_func
    def feed_rows(
        fresh: T.Tensor((n, columns), T.int32),
        seqlens_q: T.Tensor((n,), T.int32),
        remap: T.Tensor((n,), T.int32),
        sampled: T.Tensor((m,), T.int32),
        guesses: T.Tensor((m, max(drafts, 1)), T.int32),
        accepted: T.Tensor((m,), T.int32),
        win: T.Tensor((n, wide), T.int32),
        table: T.Tensor((known,), T.int32),
        ids: T.Tensor((rows,), T.int32),
        ngrams: T.Tensor((rows, max(grams, 1)), T.int32),
        vocabulary: T.int32,
        pad: T.int32,
    ):
        with T.Kernel(VECTOR_CORES) as core, T.SimtVF(threads=threads):
            lane = T.get_thread_binding()
            request = T.alloc_local((1,), T.int32)
            first = T.alloc_local((1,), T.int32)
            rejected = T.alloc_local((1,), T.int32)
            token = T.alloc_local((1,), T.int32)
            alive = T.alloc_local((1,), T.int32)
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES * threads)):
                row = (step * VECTOR_CORES + core) * threads + lane
                if row < rows:
                    request[0] = 0
                    first[0] = 0
                    while request[0] < n - 1 and first[0] + seqlens_q[request[0]] <= row:
                        first[0] = first[0] + seqlens_q[request[0]]
                        request[0] = request[0] + 1
                    j = row - first[0]
                    token_of(token, fresh, remap, sampled, guesses, request[0], j, vocabulary - 1)
                    ids[row] = token[0]
                    if grams > 0:
                        rejected[0] = drafts
                        if remap[request[0]] >= 0:
                            taken = accepted[T.min(remap[request[0]], m - 1)]
                            rejected[0] = drafts - T.min(T.max(taken, 0), drafts)
                        alive[0] = 1
                        for r in T.serial(grams):
                            at = j + back - r  # in the line of the history, then this step's tokens
                            if at < back:
                                token[0] = win[request[0], at + drafts - rejected[0]]
                            else:
                                token_of(token, fresh, remap, sampled, guesses, request[0], at - back, vocabulary - 1)
                                if token[0] < known:
                                    token[0] = table[token[0]]
                                else:
                                    token[0] = -1
                            if token[0] < 0:
                                alive[0] = 0
                            ngrams[row, r] = T.if_then_else(alive[0] == 1, token[0], pad)

    return feed_rows


@kernel
def corrected_ends(*, threads: int = 128):
    """``start + seqlens_q`` int32 ``[n]`` less the drafts that the step before rejected of its ``drafts``: ``accepted``
    int32 ``[m]`` by ``remap`` int32 ``[n]``, negative for a request that continues no row."""
    n, m = T.dynamic("n"), T.dynamic("m")

    @T.prim_func
    def corrected_ends(
        start: T.Tensor((n,), T.int32),
        seqlens_q: T.Tensor((n,), T.int32),
        remap: T.Tensor((n,), T.int32),
        accepted: T.Tensor((m,), T.int32),
        out: T.Tensor((n,), T.int32),
        drafts: T.int32,
    ):
        with T.Kernel(VECTOR_CORES) as core, T.SimtVF(threads=threads):
            lane = T.get_thread_binding()
            for step in T.serial(T.ceildiv(n, VECTOR_CORES * threads)):
                row = (step * VECTOR_CORES + core) * threads + lane
                if row < n:
                    if remap[row] >= 0:
                        taken = T.min(T.max(accepted[T.min(remap[row], m - 1)], 0), drafts)
                        out[row] = start[row] + seqlens_q[row] - (drafts - taken)
                    else:
                        out[row] = start[row] + seqlens_q[row]

    return corrected_ends


@kernel
def verified_lengths(*, drafts: int, threads: int = 256):
    """1 and how many of a request's drafts are among the ``budget`` most certain ones, int32 ``[n]``.

    The certainty of a draft is the product of ``confidence`` fp32 ``[m, drafts]`` up to it, of row ``remap`` int32
    ``[n]``; 0 where there is no row. Ties go to the smaller request, then to the earlier draft.
    """
    n, m = T.dynamic("n"), T.dynamic("m")

    @T.prim_func
    def verified_lengths(
        confidence: T.Tensor((m, drafts), T.float32),
        remap: T.Tensor((n,), T.int32),
        out: T.Tensor((n,), T.int32),
        budget: T.int32,
    ):
        with T.Kernel(VECTOR_CORES) as core, T.SimtVF(threads=threads):
            lane = T.get_thread_binding()
            sure = T.alloc_shared((MOST_DRAFTS,), T.float32)
            product = T.alloc_local((1,), T.float32)
            found = T.alloc_local((1,), T.float32)
            before = T.alloc_local((1,), T.int32)
            length = T.alloc_local((1,), T.int32)
            for turn in T.serial(T.ceildiv(n, threads)):
                i = turn * threads + lane
                if i < n:
                    product[0] = T.float32(1)
                    for j in T.serial(drafts):
                        found[0] = T.float32(0)
                        if remap[i] >= 0 and remap[i] < m:
                            found[0] = confidence[remap[i], j]
                        if is_nan(found[0]):
                            found[0] = T.float32(0)
                        product[0] = product[0] * T.min(T.max(found[0], T.float32(0)), T.float32(1))
                        sure[i * drafts + j] = product[0]
            T.sync_threads()
            for step in T.serial(T.ceildiv(n, VECTOR_CORES * threads)):
                i = (step * threads + lane) * VECTOR_CORES + core
                if i < n:
                    length[0] = 1
                    for j in T.serial(drafts):
                        before[0] = 0
                        for other in T.serial(n * drafts):
                            if sure[other] > sure[i * drafts + j] or (
                                sure[other] == sure[i * drafts + j] and other < i * drafts + j
                            ):
                                before[0] = before[0] + 1
                        if before[0] < budget:
                            length[0] = length[0] + 1
                    out[i] = length[0]

    return verified_lengths


@kernel
def draft_rows(*, block: int, window: int, threads: int = 128):
    """Rows of a block drafter, ``block`` for each of ``n`` requests, all int32: from ``sampled``, ``last`` and ``slot``
    ``[n]`` to ``ids``, ``positions`` and ``slots`` ``[n * block]``, ``keys`` ``[n * block, window]``, slots of the
    window that ends at ``last``, -1 none, and ``own`` ``[n * block, block]``, slots of the block."""
    n = T.dynamic("n")

    @T.prim_func
    def draft_rows(
        sampled: T.Tensor((n,), T.int32),
        last: T.Tensor((n,), T.int32),
        slot: T.Tensor((n,), T.int32),
        ids: T.Tensor((n * block,), T.int32),
        positions: T.Tensor((n * block,), T.int32),
        slots: T.Tensor((n * block,), T.int32),
        keys: T.Tensor((n * block, window), T.int32),
        own: T.Tensor((n * block, block), T.int32),
        ring: T.int32,
        noise: T.int32,
        vocabulary: T.int32,
    ):
        with T.Kernel(VECTOR_CORES) as core, T.SimtVF(threads=threads):
            lane = T.get_thread_binding()
            for step in T.serial(T.ceildiv(n * block, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < n * block:
                    request, j = row // block, row % block
                    for turn in T.serial(T.ceildiv(window, threads)):
                        k = turn * threads + lane
                        if k < window:
                            at = T.max(last[request] - window + 1, 0) + k
                            keys[row, k] = T.if_then_else(at > last[request], -1, slot[request] * ring + at % ring)
                    if lane < block:
                        own[row, lane] = slot[request] * block + lane
                    if lane == 0:
                        positions[row] = last[request] + 1 + j
                        slots[row] = slot[request] * block + j
                        if j == 0 and sampled[request] >= 0 and sampled[request] < vocabulary:
                            ids[row] = sampled[request]
                        else:
                            ids[row] = noise

    return draft_rows
