"""Rows sorted by expert times stacks of MXFP4 matrices (E2M1, one E8M0 scale for 32 inputs).

The weights are the first operand: 64 outputs a warpgroup against ``tile`` rows of activations, so a tile of 8 rows
wastes little. Codes go from memory to shared memory as they are, from there to registers, and become the bf16 values
they stand for (exact) in the registers that the tensor core reads. One warp copies tiles ahead of the others (bulk
copies, ``stages`` deep). The sum over the inputs runs in one order in one block, whatever stands beside a row.

Blocks take (slab of outputs, tile of rows): neighbours in the grid share the rows of activations. Many rows an expert
have a kernel of their own (``wide.py``).
"""

from importlib.resources import files
from typing import Any

import tilelang
import tilelang.language as T

from deepinfer_cuda.jit import kernel
from deepinfer_cuda.tl.moe.packing import CODE_WORDS, LINE, LINES, units
from deepinfer_cuda.tl.moe.swiglu import SWIGLU

TILES = SWIGLU + files(__package__).joinpath("tiles.cuh").read_text(encoding="utf-8")
OPTIONS = {"tl.disable_warp_specialized": True}
"""The roles of the warps are written out below."""
_COPIERS = 32


@T.macro
def _expand(staged, stage, slab, codes, scales, fragment, depth, thread):
    """A staged slab of 64 outputs by ``64 * depth`` inputs as bf16 in a fragment."""
    for d in T.unroll(depth):
        for u in T.vectorized(4):
            codes[d * 4 + u] = staged[stage, slab, d * LINES + thread // 8, thread % 8 * 4 + u]
        scales[d] = staged[stage, slab, d * LINES + CODE_WORDS // LINE, thread // 4]
    T.call_extern(
        "handle", f"di_expand_e2m1<{2 * depth}>",
        T.address_of(codes[0]), T.address_of(scales[0]), T.address_of(fragment[0, 0]),
    )  # fmt: skip


@kernel(
    cases=[
        {
            "inputs": inputs,
            "outputs": outputs,
            "gated": gated,
            "cast": gated,
            "out": "bfloat16",
            "tile": tile,
            "step": 128,
            "stages": 4,
            "groups": 1,
            "parts": 2,
        }
        for inputs, outputs, gated, tiles in (
            (5120, 4608, True, (8, 16, 32)),
            (2304, 5120, False, (8, 16, 32)),
            (256, 128, True, (8, 16, 32)),
            (64, 256, False, (8, 16, 32)),
        )
        for tile in tiles
    ],
    pass_configs=OPTIONS,
)  # fmt: skip
def grouped_product(
    *,
    inputs: int,
    outputs: int,
    gated: bool,
    cast: bool,
    out: str,
    tile: int,
    step: int,
    stages: int,
    groups: int,
    parts: int,
) -> Any:
    """Rows ``x`` in tiles (``sort.py``) times their experts' matrices.

    :param gated: outputs are gate and up: write their SwiGLU times the row's weight, rounded to bf16, and with ``cast``
        quantised in groups of 32 (values over E4M3 codes). Otherwise write the products as ``out``.
    :param tile: rows of a tile, a multiple of 8. :param step: inputs of a pipeline step, a multiple of 64.
    :param groups: warpgroups of a block. :param parts: slabs of 64 outputs of each.
    """
    rows, count, slabs = T.dynamic("rows"), T.dynamic("count"), T.dynamic("slabs")
    depth, held = step // 64, groups * parts
    tall, steps = units(outputs), -(-inputs // step)
    columns = held * (32 if gated else 64)
    width = outputs // 2 if gated else outputs
    pitch = columns + (8 if out == "bfloat16" else 4)
    threads = 128 * groups

    def place(i, j):
        return i // 16 * 32 + i % 8 * 4 + j % 8 // 2

    def index(i, j):
        return j // 8 * 4 + i % 16 // 8 * 2 + j % 2

    operand = tilelang.layout.Fragment((64 * groups, step), forward_thread_fn=place, forward_index_fn=index)
    result = tilelang.layout.Fragment((64 * groups, tile), forward_thread_fn=place, forward_index_fn=index)

    @T.macro
    def multiply(staged, xs, full, empty, ys, weights, begin, active, limit, tx):
        """All inputs times the rows of a tile, and the sums to ``ys``."""
        a = T.alloc_fragment((64 * groups, step), "bfloat16")
        sums = [T.alloc_fragment((64 * groups, tile), "float32") for _ in range(parts)]
        codes = T.alloc_local((4 * depth,), "uint32")
        scales = T.alloc_local((depth,), "uint32")
        T.annotate_layout({a: operand, **dict.fromkeys(sums, result)})
        for c in sums:
            T.clear(c)
        for k in T.serial(steps):
            s = k % stages
            T.mbarrier_wait_parity(full[s], k // stages % 2)
            for part, c in enumerate(sums):
                _expand(staged, s, part * groups + tx // 128, codes, scales, a, depth, tx % 128)
                T.gemm(a, xs[s, :, :], c, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
            T.mbarrier_arrive(empty[s])
        for part, c in enumerate(sums):
            if gated:
                T.call_extern(
                    "handle", f"di_swiglu_tile<{tile // 8}>", T.address_of(c[0, 0]), T.address_of(ys[0, 0]),
                    pitch, part * 32 * groups, T.address_of(weights[begin]), active, limit,
                )  # fmt: skip
            else:
                T.call_extern(
                    "handle", f"di_keep_tile<{tile // 8}>", T.address_of(c[0, 0]), T.address_of(ys[0, 0]), pitch,
                    part * 64 * groups,
                )  # fmt: skip

    @T.prim_func
    def grouped_product(
        x: T.Tensor((rows, inputs), "bfloat16"),
        tile_expert: T.Tensor((count,), "int32"),
        tile_begin: T.Tensor((count,), "int32"),
        tile_rows: T.Tensor((count,), "int32"),
        w: T.Tensor((slabs, units(inputs) * LINES, LINE), "uint32"),
        weights: T.Tensor((rows,), "float32"),
        limit: T.float32,
        y: T.Tensor((rows, width), out),
    ):
        with T.Kernel(T.ceildiv(tall, held), count, threads=threads + _COPIERS, prelude=TILES) as (slab, slot):
            staged = T.alloc_shared((stages, held, depth * LINES, LINE), "uint32")
            xs = T.alloc_shared((stages, tile, step), "bfloat16")
            ys = T.alloc_shared((tile, pitch), out)
            full = T.alloc_barrier([_COPIERS] * stages)
            empty = T.alloc_barrier([threads] * stages)
            tx = T.get_thread_binding()
            active = tile_rows[slot]
            if active > 0:
                begin = tile_begin[slot]
                if tx >= threads:
                    for k in T.serial(steps):
                        s = k % stages
                        T.mbarrier_wait_parity(empty[s], (k // stages + 1) % 2)
                        top = tile_expert[slot] * tall + slab * held
                        T.tma_copy(
                            w[top : top + held, k * depth * LINES : (k + 1) * depth * LINES, :],
                            staged[s, :, :, :],
                            barrier=full[s],
                        )
                        T.tma_copy(x[begin : begin + tile, k * step : (k + 1) * step], xs[s, :, :], barrier=full[s])
                        T.mbarrier_arrive(full[s])
                else:
                    multiply(staged, xs, full, empty, ys, weights, begin, active, limit, tx)
                    T.sync_threads(1, threads)
                    store = "di_store_hidden" if gated else "di_store_tile"
                    options = f"{tile}, {columns}, {threads}" + (f", {str(cast).lower()}" if gated else "")
                    T.call_extern(
                        "handle", f"{store}<{options}>", T.address_of(ys[0, 0]), pitch,
                        T.address_of(y[begin, slab * columns]), width, width - slab * columns, active,
                    )  # fmt: skip

    return grouped_product
