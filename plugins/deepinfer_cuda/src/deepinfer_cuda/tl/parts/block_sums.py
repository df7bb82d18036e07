"""Sums over a block of threads, one barrier each. Needs ``lane`` and ``warp`` of the thread and shared int32 words."""

from typing import Any

import tilelang.language as T

WARP = 32


def warp_sum(value: Any) -> Any:
    """The sum of an int32 over the warp, in every thread: one instruction, where shuffles would be five."""
    return T.call_extern("int32", "__reduce_add_sync", T.uint32(0xFFFFFFFF), value)


@T.macro
def block_sum(value, sums, slot, lane, warp, warps: int, told):
    """``told[1]`` = sum of ``value`` over the block; ``told[0]`` is lost. Calls in a row use different slots, each
    of 32 words of ``sums``."""
    told[0] = warp_sum(value)
    if lane == 0:
        sums[slot * WARP + warp] = told[0]
    T.sync_threads()
    told[0] = T.if_then_else(lane < warps, sums[slot * WARP + T.min(lane, warps - 1)], 0)
    told[1] = warp_sum(told[0])


@T.macro
def block_prefix(value, sums, slot, lane, warp, warps: int, told):
    """``told[0]`` = sum of ``value`` over the threads before this one, ``told[1]`` over all; slots as above."""
    running = T.alloc_var("int32")
    running = value
    for s in T.unroll(5):
        other = T.shfl_up(running, 1 << s)
        running += T.if_then_else(lane >= (1 << s), other, 0)
    if lane == WARP - 1:
        sums[slot * WARP + warp] = running
    T.sync_threads()
    across = T.alloc_var("int32")
    across = T.if_then_else(lane < warps, sums[slot * WARP + T.min(lane, warps - 1)], 0)
    for s in T.unroll(5):
        other = T.shfl_up(across, 1 << s)
        across += T.if_then_else(lane >= (1 << s), other, 0)
    told[1] = T.shfl_sync(across, WARP - 1)
    ahead = T.shfl_sync(across, T.max(warp - 1, 0))
    told[0] = running - value + T.if_then_else(warp > 0, ahead, 0)
