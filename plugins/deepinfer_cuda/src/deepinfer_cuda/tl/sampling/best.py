"""The best token of each row: the highest logit, the lowest id among equals, the first NaN before all."""

from typing import Any

import tilelang.language as T

from deepinfer_cuda.jit import kernel
from deepinfer_cuda.tl.sampling.rows import ROWS, WARP


@kernel(cases=[{"width": 1536, "vector": 4}, {"width": 129280, "vector": 4}, {"width": 1527, "vector": 1}])
def best(*, width: int, vector: int, threads: int = 512) -> Any:
    """A block a row. ``vector``: values read at once; 4 needs rows that begin at multiples of 16 bytes."""
    rows, stride = T.dynamic("rows"), T.dynamic("stride")
    step = threads * vector
    warps = threads // WARP

    @T.prim_func
    def best(
        logits: T.StridedTensor((rows, width), (stride, 1), "float32"),
        ids: T.Tensor((rows,), "int64"),
        peaks: T.Tensor((rows,), "float32"),
    ):
        with T.Kernel(rows, threads=threads, prelude=ROWS) as row:
            thread = T.get_thread_binding()
            values = T.alloc_local((vector,), "float32")
            top = T.alloc_local((1,), "uint32")
            at = T.alloc_local((1,), "int32")
            leader = T.alloc_local((1,), "uint64")
            found = T.alloc_shared((warps,), "uint64")
            top[0] = T.uint32(0)
            at[0] = thread * vector
            for i in T.unroll(width // step, unroll_factor=8):
                T.call_extern(
                    "handle",
                    f"di_load<{vector}>",
                    T.address_of(values[0]),
                    T.address_of(logits[row, i * step + thread * vector]),
                )
                for v in T.unroll(vector):
                    order = T.call_pure_extern("uint32", "di_order", values[v])
                    if order > top[0]:
                        top[0] = order
                        at[0] = i * step + thread * vector + v
            for i in T.serial(T.ceildiv(width % step, threads)):
                column = width - width % step + i * threads + thread
                if column < width:
                    order = T.call_pure_extern("uint32", "di_order", logits[row, column])
                    if order > top[0]:
                        top[0] = order
                        at[0] = column
            leader[0] = T.call_extern("uint64", "di_warp_max", T.call_pure_extern("uint64", "di_place", top[0], at[0]))
            if thread % WARP == 0:
                found[thread // WARP] = leader[0]
            T.sync_threads()
            if thread < WARP:
                leader[0] = T.uint64(0)
                if thread < warps:
                    leader[0] = found[thread]
                leader[0] = T.call_extern("uint64", "di_warp_max", leader[0])
                if thread == 0:
                    at[0] = T.call_pure_extern("int32", "di_id", leader[0])
                    ids[row] = T.cast(at[0], "int64")
                    peaks[row] = logits[row, at[0]]

    return best
