"""The canonical draw from rows of log-probabilities (``spec/sampling.md`` 2.4, 2.5)."""

from typing import Any

import tilelang.language as T

from deepinfer_cuda.jit import kernel
from deepinfer_cuda.tl.sampling.rows import ROWS, WARP, pure, read


@kernel(cases=[{"width": 1536, "vector": 4}, {"width": 1527, "vector": 1}, {"width": 129280, "vector": 4}])
def draw(*, width: int, vector: int, threads: int = 512) -> Any:
    """A block a row, a stretch of the row a warp: sums of weights first, then the stretch that the number falls into.

    A row without any weight gives its most probable token, the lowest id among equals; NaN counts as nothing.
    """
    rows, stride = T.dynamic("rows"), T.dynamic("stride")
    warps = threads // WARP
    chunk = WARP * vector
    turns = -(-width // (warps * chunk))

    @T.prim_func
    def draw(
        logprobs: T.StridedTensor((rows, width), (stride, 1), "float32"),
        seeds: T.Tensor((rows,), "int64"),
        positions: T.Tensor((rows,), "int64"),
        case: T.int32,
        tokens: T.Tensor((rows,), "int32"),
    ):
        with T.Kernel(rows, threads=threads, prelude=ROWS) as row:
            T.annotate_min_blocks_per_sm(2)
            thread = T.get_thread_binding()
            warp = thread // WARP
            first = warp * (turns * chunk) + (thread % WARP) * vector
            values = T.alloc_local((vector,), "float32")
            sums = T.alloc_shared((warps,), "int64")
            bests = T.alloc_shared((warps,), "uint64")
            part = T.alloc_local((1,), "int64")
            upto = T.alloc_local((1,), "int64")
            before = T.alloc_local((1,), "int64")
            best = T.alloc_local((1,), "uint64")

            part[0] = T.int64(0)
            best[0] = T.uint64(0)
            for i in T.unroll(turns, unroll_factor=4):
                read(values, logprobs, row, first + i * chunk, width, vector)
                for v in T.unroll(vector):
                    e = pure("float32", "di_probability", values[v])
                    part[0] = part[0] + pure("int64", "di_portion", e)
                    best[0] = pure("uint64", "di_larger", best[0], pure("uint64", "di_rank", e, first + i * chunk + v))
            part[0] = T.call_extern("int64", "di_warp_sum", part[0])
            best[0] = T.call_extern("uint64", "di_warp_max", best[0])
            if thread % WARP == 0:
                sums[warp] = part[0]
                bests[warp] = best[0]
            T.sync_threads()
            part[0] = T.int64(0)
            before[0] = T.int64(0)  # weight of the stretches before this warp's
            for w in T.serial(warps):
                part[0] = part[0] + sums[w]
                if w < warp:
                    before[0] = before[0] + sums[w]
            if part[0] == T.int64(0):
                if thread == 0:
                    for w in T.serial(1, warps):
                        best[0] = pure("uint64", "di_larger", best[0], bests[w])
                    tokens[row] = pure("int32", "di_id", best[0])
            else:
                target = pure("int64", "di_target", pure("int64", "di_key", seeds[row], positions[row], case), part[0])
                if (before[0] <= target) and (target < before[0] + sums[warp]):
                    for i in T.serial(turns):
                        read(values, logprobs, row, first + i * chunk, width, vector)
                        part[0] = T.int64(0)
                        for v in T.unroll(vector):
                            part[0] = part[0] + pure(
                                "int64", "di_portion", pure("float32", "di_probability", values[v])
                            )
                        upto[0] = before[0] + T.call_extern("int64", "di_warp_scan", part[0])
                        before[0] = T.shfl_sync(upto[0], WARP - 1)
                        upto[0] = upto[0] - part[0]
                        # Of all lanes and turns, one holds the token.
                        for v in T.unroll(vector):
                            part[0] = upto[0] + pure(
                                "int64", "di_portion", pure("float32", "di_probability", values[v])
                            )
                            if (upto[0] <= target) and (target < part[0]):
                                tokens[row] = first + i * chunk + v
                            upto[0] = part[0]

    return draw
