"""How many drafts of each request a step verifies (``spec/engine.md`` 7.4): a warp a request counts, for each of its
drafts, how many of all come before it. Nothing is sorted, and nothing depends on the order in which warps arrive."""

import tilelang.language as T

from deepinfer_cuda.jit import kernel
from deepinfer_cuda.tl.parts.block_sums import WARP, warp_sum

THREADS = 128


@T.macro
def certainties(values, confidence, remap, i, results, drafts: int, mapped: bool):
    """``values[j]``: product of the confidences of request ``i`` up to draft ``j``, from the left, in fp32."""
    source = remap[i] if mapped else i
    for j in T.unroll(drafts):
        given = confidence[T.max(T.min(source, results - 1), 0), j]
        usable = T.And(source >= 0, source < results)
        # NaN fails both comparisons and counts as nothing.
        values[j] = T.if_then_else(T.And(usable, given > T.float32(0)), T.min(given, T.float32(1)), T.float32(0))
        if j > 0:
            values[j] = values[j] * values[j - 1]


@kernel(cases=[{"drafts": drafts, "mapped": mapped} for drafts in (5, 2) for mapped in (True, False)])
def share_rows(*, drafts: int, mapped: bool):
    """Arguments: confidences fp32 ``[M, drafts]``, row in the step before int32 ``[N]`` (``mapped``; else any tensor),
    drafts to verify in all, out int32 ``[N]``: one more than the drafts of each request that are among the best."""
    requests, results, some = T.dynamic("requests, results, some")

    @T.prim_func
    def share_rows(
        confidence: T.Tensor((results, drafts), "float32"),
        remap: T.Tensor((some,), "int32"),
        budget: T.int32,
        out: T.Tensor((requests,), "int32"),
    ):
        with T.Kernel(T.ceildiv(requests, THREADS // WARP), threads=THREADS) as block:
            tx = T.get_thread_binding()
            own = T.alloc_local((drafts,), "float32")
            other = T.alloc_local((drafts,), "float32")
            ahead = T.alloc_local((drafts,), "int32")
            many = T.alloc_var("int32", init=0)
            i = T.min(block * (THREADS // WARP) + tx // WARP, requests - 1)  # whole warps take part in the sums
            certainties(own, confidence, remap, i, results, drafts, mapped)
            for j in T.unroll(drafts):
                ahead[j] = 0
            for turn in T.serial(T.ceildiv(requests, WARP)):
                m = turn * WARP + tx % WARP
                if m < requests:
                    certainties(other, confidence, remap, m, results, drafts, mapped)
                    for j in T.unroll(drafts):
                        for d in T.unroll(drafts):
                            earlier = T.Or(m < i, T.And(m == i, d < j))
                            first = T.Or(other[d] > own[j], T.And(other[d] == own[j], earlier))
                            ahead[j] += T.cast(first, "int32")
            many = 1
            for j in T.unroll(drafts):
                many += T.cast(warp_sum(ahead[j]) < budget, "int32")
            if tx % WARP == 0 and block * (THREADS // WARP) + tx // WARP < requests:
                out[i] = many

    return share_rows
