"""Dense products with few rows: ``[M, K] x [N, K]^T``, the weight as the stationary operand.

The matrix units compute the transpose: 64 outputs of the weight by as many rows as there are, so that one row costs
little more than the bytes of the weight. FP8 weights are stored in the order of the register operand (``packed``), are
copied to shared memory as they are and become bf16 in registers. The inputs are cut into ``splits`` at places that
depend on the weight's shape alone; partial sums are added in order by the block that arrives last. So a row's bits do
not depend on how many rows there are, nor on the tile that was chosen for them.
"""

import functools
from importlib.resources import files
from typing import Any

import tilelang.language as T

from deepinfer_cuda.jit import kernel

PRODUCTS = files(f"{__package__}.parts").joinpath("products.cuh").read_text(encoding="utf-8")
STEP = 128
"""Inputs a pipeline stage holds."""
ALIGNED = 32
"""Words that places of the copy engine in shared memory are apart at least; those behind the wanted ones are unused."""
WORKSPACE = 1 << 23
"""fp32 values of partial sums that a product may have."""
COUNTERS = 1 << 12
REGISTERS = 65536

CASES = [
    {"outputs": 1792, "inputs": 5120, "tile": 64, "rows": 8, "splits": 8, "fmt": "e4m3", "out": "bfloat16"},
    {
        "outputs": 32768,
        "inputs": 1280,
        "tile": 128,
        "rows": 64,
        "splits": 1,
        "fmt": "e4m3",
        "out": "bfloat16",
        "stages": 3,
    },
    {"outputs": 256, "inputs": 256, "tile": 64, "rows": 8, "splits": 1, "fmt": "e4m3", "out": "bfloat16"},
    {"outputs": 384, "inputs": 5120, "tile": 64, "rows": 8, "splits": 20, "fmt": "bf16", "out": "float32"},
]


def by_row(shape: tuple[int, int]) -> Any:
    """The register operand of 16 x 16 pieces: a thread has two neighbours of rows g and g + 8, twice."""
    return T.Fragment(
        shape,
        forward_thread_fn=lambda i, j: i // 16 * 32 + i % 8 * 4 + j % 8 // 2,
        forward_index_fn=lambda i, j: j // 8 * 4 + i % 16 // 8 * 2 + j % 2,
    )


def consumer_registers(threads: int, blocks: int) -> int:
    """Registers of a computing thread where ``blocks`` of ``threads`` + 128 that load share a multiprocessor."""
    launched = REGISTERS // (blocks * (threads + 128)) // 8 * 8
    return min(240, (launched * (threads + 128) - 24 * 128) // threads // 8 * 8)


def in_order(terms: list[Any]) -> Any:
    """The sum of ``terms``, from the first to the last."""
    return functools.reduce(lambda total, term: total + term, terms)


# All that could pass an end goes through the copy engine, which stops there by itself.
@kernel(cases=CASES, pass_configs={"tl.disable_safe_memory_legalize": True})
def dense_rows(
    *,
    outputs: int,
    inputs: int,
    tile: int,
    rows: int,
    splits: int,
    fmt: str,
    out: str,
    groups: int = 1,
    stages: int = 4,
    blocks: int = 2,
) -> Any:
    """``x`` bf16 ``[M, inputs]`` times a weight of ``outputs``, ``tile`` of them and ``rows`` rows a block.

    Of ``groups`` weights, each has its inputs and outputs beside those of the others.
    """
    count = T.dynamic("count")
    span, threads, tiles = inputs // splits, tile * 2, groups * outputs // tile
    codes, all_outputs = fmt == "e4m3", groups * outputs
    stored = (all_outputs // 16, inputs // 32, 128) if codes else (all_outputs, inputs)

    @T.prim_func
    def dense_rows(
        x: T.Tensor((count, groups * inputs), "bfloat16"),
        weight: T.Tensor(stored, "uint32" if codes else "bfloat16"),
        factors: T.Tensor((all_outputs // 32, inputs // 32), "uint32"),
        partial: T.Tensor((WORKSPACE // (tile * rows), tile, rows), "float32"),
        counters: T.Tensor((COUNTERS,), "int32"),
        y: T.Tensor((count, all_outputs), out),
    ):
        with T.Kernel(tiles, splits, T.ceildiv(count, rows), threads=threads, prelude=PRODUCTS) as (bn, bs, bm):
            T.annotate_min_blocks_per_sm(blocks)
            T.annotate_producer_reg_dealloc(24)
            T.annotate_consumer_reg_alloc(consumer_registers(threads, blocks))
            thread = T.get_thread_binding()
            xs = T.alloc_shared((rows, STEP), "bfloat16")
            ys = T.alloc_shared((rows, tile), out)
            total = T.alloc_fragment((tile, rows), "float32")
            last = T.alloc_local((1,), "int32")
            if codes:
                packed = T.alloc_shared((tile // 16, STEP // 32, 128), "uint32")
                scales = T.alloc_shared((ALIGNED // (STEP // 32), STEP // 32), "uint32")
                operand = T.alloc_fragment((tile, STEP), "bfloat16")
                T.annotate_layout({operand: by_row((tile, STEP))})
            else:
                ws = T.alloc_shared((tile, STEP), "bfloat16")
            T.clear(total)
            for step in T.Pipelined(span // STEP, num_stages=stages):
                at = bs * span + step * STEP
                T.copy(x[bm * rows, bn // (outputs // tile) * inputs + at], xs)
                if codes:
                    T.copy(weight[bn * (tile // 16), at // 32, 0], packed)
                    T.copy(factors[bn * (tile // 32), at // 32], scales)
                    T.call_extern(
                        "handle",
                        f"di_unpack_e4m3<{STEP // 32}>",
                        T.access_ptr(operand[0, 0], "w", tile, STEP),
                        T.access_ptr(packed[thread // 32, 0, thread % 32 * 4], "r", STEP // 32 * 128),
                        T.access_ptr(scales[thread // 64, 0], "r", STEP // 32),
                    )
                    T.gemm(operand, xs, total, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                else:
                    T.copy(weight[bn * tile, at], ws)
                    T.gemm(ws, xs, total, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
            if splits > 1:
                place = bm * tiles + bn
                T.copy(total, partial[place * splits + bs, :, :])
                last[0] = T.call_extern(
                    "int32", f"di_arrive<{threads}, {splits}>", T.access_ptr(counters[place], "rw", 1), thread
                )
                if last[0] == 0:
                    T.thread_return()
                for i, j in T.Parallel(tile, rows):
                    total[i, j] = in_order([partial[place * splits + s, i, j] for s in range(splits)])
            for i, j in T.Parallel(tile, rows):
                ys[j, i] = total[i, j]
            T.copy(ys, y[bm * rows, bn * tile])

    return dense_rows
