"""Several blocks of threads a row: what each of them counts for itself, and what they tell each other.

Blocks of a row are a cluster and read each other's shared memory. Variables of a block may lie in the same shared
memory at different times, so a barrier of the cluster stands before such a read (what is read is there) and behind it
(all have read, and the memory may be used for something else).
"""

from typing import Any

import tilelang.language as T

from deepinfer_cuda.tl.sampling.rows import WARP


@T.macro
def meet(parts: int) -> None:
    """A barrier of all threads of a row."""
    if parts > 1:
        T.cluster_arrive()
        T.cluster_wait()
    else:
        T.sync_threads()


def of_part(dtype: str, variable: Any, part: Any, parts: int) -> Any:
    """An element of shared memory as it is in block ``part`` of the row."""
    return T.call_extern(dtype, "di_of_part", T.address_of(variable), part) if parts > 1 else variable


def sum_of_parts(variable: Any, parts: int) -> Any:
    """An unsigned word of shared memory, summed over the blocks of the row in 64 bits."""
    return T.call_extern("int64", f"di_sum_of_parts<{parts}>", T.address_of(variable))


@T.macro
def gather(value, before, sums, gross, thread, part, warps: int, parts: int) -> None:
    """``value[0]``: its sum over the row's threads, in every one; ``before[0]``: over the blocks before this one."""
    value[0] = T.call_extern("int64", "di_warp_sum", value[0])
    T.sync_threads()
    if thread % WARP == 0:
        sums[thread // WARP] = value[0]
    T.sync_threads()
    value[0] = T.int64(0)
    before[0] = T.int64(0)
    for w in T.serial(warps):
        value[0] = value[0] + sums[w]
    if parts > 1:
        if thread == 0:
            gross[0] = value[0]
        meet(parts)
        value[0] = T.int64(0)
        for p in T.serial(parts):
            if p < part:
                before[0] = before[0] + of_part("int64", gross[0], p, parts)
            value[0] = value[0] + of_part("int64", gross[0], p, parts)
        meet(parts)
