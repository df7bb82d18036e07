"""Keys in registers times queries in shared memory, on either architecture, one warp group at a time.

The operand in registers is a tile of 64 keys, 16 a warp; a thread owns two of them (``g`` and ``g + 8`` of its warp's
16) and a quarter of their values. Queries lie in shared memory as the 8 x 16-byte matrices that both instructions read
without bank conflicts. A sum over values may be taken in any order as long as it is always the same, so value
``16 s + 8 half + 2 c + b`` of an instruction is the one that thread ``c`` of a quad gets out of its own words with the
fewest instructions: code ``i + 4 b`` of word ``w`` of its quarter, where ``4 w + i = 2 s + half``.
"""

from __future__ import annotations

from typing import Any

import tilelang.language as T
from tvm.target import Target

KEYS = 64
"""Keys of a tile."""
STEP = 16
"""Values that an instruction sums over."""
CORE = 64
"""bf16 elements of one 8 x 16-byte matrix."""


def has_wgmma() -> bool:
    """Whether the target being compiled for has products of warp groups with operands in registers (SM90)."""
    return "sm_90a" in str(Target.current().attrs["arch"])


def core_offset(row: Any, pair: Any, quad: Any, width: int) -> Any:
    """Element of shared memory where query row ``row`` keeps pair ``pair`` (0 .. width / 8 - 1) of quarter ``quad``."""
    return ((row // 8) * (width // 8) + pair) * CORE + (row % 8) * 8 + quad * 2


@T.macro
def start_wgmma(keys, queries, desc, acc, width: int, columns: int):
    """Begins ``acc[64, columns] = keys x queries^T`` by wgmma. ``desc`` describes ``queries``."""
    T.warpgroup_fence_operand(keys, num_regs=width // 4)
    T.warpgroup_fence_operand(acc, num_regs=columns // 2)
    T.warpgroup_arrive()
    for s in T.unroll(width // STEP):
        T.ptx_wgmma_rs(
            "float32",
            f"m64n{columns}k16",
            True,
            "bf16",
            "bf16",
            "fp32",
            keys.data,
            s * 4,
            desc.data,
            s * (2 * CORE * 2 // 16),
            acc.data,
            0,
            T.Select(s != 0, 1, 0),
            1,
            1,
        )
    T.warpgroup_commit_batch()


@T.macro
def finish_wgmma(acc, columns: int):
    """Waits until ``acc`` is there."""
    T.warpgroup_wait(0)
    T.warpgroup_fence_operand(acc, num_regs=columns // 2)


@T.macro
def multiply_wgmma(keys, queries, desc, acc, width: int, columns: int):
    """``acc[64, columns] = keys x queries^T`` by wgmma. ``desc`` describes ``queries``."""
    start_wgmma(keys, queries, desc, acc, width, columns)
    finish_wgmma(acc, columns)


@T.macro
def multiply_mma(keys, queries, part, acc, lane, width: int, columns: int):
    """The same by warp-wide mma; ``part`` holds the two words of a thread's share of a matrix of queries."""
    for i in T.unroll(columns // 2):
        acc[i] = 0.0
    for s in T.unroll(width // STEP):
        for j in T.unroll(columns // 8):
            for half in T.unroll(2):
                part[half] = queries[(j * (width // 8) + 2 * s + half) * (CORE // 2) + lane]
            T.ptx_mma(
                "float32",
                "m16n8k16",
                "row",
                "col",
                "bf16",
                "bf16",
                "fp32",
                keys.data,
                s * 4,
                part.data,
                0,
                acc.data,
                j * 4,
                T.bool(False),
            )
