"""The grouped product (``grouped.py``) of many rows an expert: its weights are expanded once for up to ``TILE`` rows.

The matrix units and the instructions that expand the codes take turns on a scheduler, so time is the sum of both, and a
second tile of an expert expands its weights a second time. A tile here holds nearly all rows of an expert of even load.
What it multiplies is the first of ``HEIGHTS`` that holds its rows, so few of them are filling. Four warpgroups with
one slab of 64 outputs each: where one waits, three others expand. On Hopper the stages are unrolled (``wide.cuh``),
which makes the places of rows and codes constants; elsewhere the product is TileLang's.

A row has the bits that the narrower tiles give it: one order of the sum over the inputs.
"""

from importlib.resources import files
from typing import Any

import tilelang
import tilelang.language as T

from deepinfer_cuda.jit import kernel
from deepinfer_cuda.tl.attention.softmax import on_hopper
from deepinfer_cuda.tl.moe.grouped import OPTIONS, TILES
from deepinfer_cuda.tl.moe.packing import CODE_WORDS, LINE, LINES, units

TILE = 96
HEIGHTS = (32, 48, 56, 64, 72, 80, TILE)
"""Rows that a tile multiplies."""
GROUPS = 4
"""Warpgroups that multiply, each a slab of 64 outputs."""
STEP = 2
"""Units of 64 inputs in a stage."""
LOADED = 16
"""Rows that one copy brings: what a tile does not have stays away."""
THREADS, COPIERS = 128 * GROUPS, 128
REGISTERS, LEAST_REGISTERS = 112, 24
"""Of a thread that multiplies, and of one that copies."""
WIDE = TILES + files(__package__).joinpath("wide.cuh").read_text(encoding="utf-8")


def stages(gated: bool) -> int:
    """As many as the tile of results leaves room for."""
    return 4 if gated else 3


@kernel(
    cases=[
        {"inputs": inputs, "outputs": outputs, "gated": gated, "cast": gated, "out": "bfloat16"}
        for inputs, outputs, gated in ((5120, 4608, True), (2304, 5120, False), (256, 128, True), (64, 256, False))
    ],
    pass_configs=OPTIONS,
)
def wide_product(*, inputs: int, outputs: int, gated: bool, cast: bool, out: str) -> Any:
    """Rows ``x`` in tiles of ``TILE`` times their experts' matrices; parameters as ``grouped_product`` has them."""
    rows, count, slabs = T.dynamic("rows"), T.dynamic("count"), T.dynamic("slabs")
    tall, steps, deep = units(outputs), -(-inputs // (64 * STEP)), stages(gated)
    columns = GROUPS * (32 if gated else 64)
    width = outputs // 2 if gated else outputs
    pitch = columns + (8 if out == "bfloat16" else 4)
    hopper = on_hopper()
    heights = ", ".join(map(str, HEIGHTS))
    consume = f"di_wide<{TILE}, {GROUPS}, {deep}, {steps}, {str(gated).lower()}, {heights}>"

    def place(i, j):
        return i // 16 * 32 + i % 8 * 4 + j % 8 // 2

    def index(i, j):
        return j // 8 * 4 + i % 16 // 8 * 2 + j % 2

    operand = tilelang.layout.Fragment((64 * GROUPS, 64), forward_thread_fn=place, forward_index_fn=index)
    result = tilelang.layout.Fragment((64 * GROUPS, TILE), forward_thread_fn=place, forward_index_fn=index)

    @T.macro
    def multiply(staged, xs, full, empty, ys, weights, begin, active, limit, tx):
        """What ``di_wide`` does, for any target and whole tiles."""
        a = T.alloc_fragment((64 * GROUPS, 64), "bfloat16")
        c = T.alloc_fragment((64 * GROUPS, TILE), "float32")
        codes = T.alloc_local((4,), "uint32")
        scales = T.alloc_local((1,), "uint32")
        T.annotate_layout({a: operand, c: result})
        T.clear(c)
        for k in T.serial(steps):
            s = k % deep
            T.mbarrier_wait_parity(full[s], k // deep % 2)
            for unit in T.unroll(STEP):
                for u in T.vectorized(4):
                    codes[u] = staged[s, tx // 128, unit * LINES + tx % 128 // 8, tx % 8 * 4 + u]
                scales[0] = staged[s, tx // 128, unit * LINES + CODE_WORDS // LINE, tx % 128 // 4]
                T.call_extern(
                    "handle", "di_expand_e2m1<2>", T.address_of(codes[0]), T.address_of(scales[0]),
                    T.address_of(a[0, 0]),
                )  # fmt: skip
                T.gemm(a, xs[s, unit, :, :], c, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
            T.mbarrier_arrive(empty[s])
        if gated:
            T.call_extern(
                "handle", f"di_swiglu_tile<{TILE // 8}>", T.address_of(c[0, 0]), T.address_of(ys[0, 0]), pitch, 0,
                T.address_of(weights[begin]), active, limit,
            )  # fmt: skip
        else:
            T.call_extern(
                "handle", f"di_keep_tile<{TILE // 8}>", T.address_of(c[0, 0]), T.address_of(ys[0, 0]), pitch, 0
            )

    @T.prim_func
    def wide_product(
        x: T.Tensor((rows, inputs), "bfloat16"),
        tile_expert: T.Tensor((count,), "int32"),
        tile_begin: T.Tensor((count,), "int32"),
        tile_rows: T.Tensor((count,), "int32"),
        w: T.Tensor((slabs, units(inputs) * LINES, LINE), "uint32"),
        weights: T.Tensor((rows,), "float32"),
        limit: T.float32,
        y: T.Tensor((rows, width), out),
    ):
        with T.Kernel(T.ceildiv(tall, GROUPS), count, threads=THREADS + COPIERS, prelude=WIDE if hopper else TILES) as (
            slab,
            slot,
        ):
            staged = T.alloc_shared((deep, GROUPS, STEP * LINES, LINE), "uint32")
            xs = T.alloc_shared((deep, STEP, TILE, 64), "bfloat16")
            ys = T.alloc_shared((TILE, pitch), out)
            full = T.alloc_barrier([COPIERS] * deep)
            empty = T.alloc_barrier([THREADS] * deep)
            if hopper:
                T.annotate_layout({xs: tilelang.layout.make_swizzled_layout(xs)})
            tx = T.get_thread_binding()
            active = tile_rows[slot]
            if active > 0:
                begin = tile_begin[slot]
                if tx >= THREADS:
                    T.set_max_nreg(LEAST_REGISTERS, 0)
                    top = tile_expert[slot] * tall + slab * GROUPS
                    for k in T.serial(steps):
                        s = k % deep
                        T.mbarrier_wait_parity(empty[s], (k // deep + 1) % 2)
                        T.tma_copy(
                            w[top : top + GROUPS, k * STEP * LINES : (k + 1) * STEP * LINES, :],
                            staged[s, :, :, :],
                            barrier=full[s],
                        )
                        for part in T.serial(T.ceildiv(active, LOADED)):
                            for unit in T.unroll(STEP):
                                first, at = part * LOADED, (k * STEP + unit) * 64
                                T.tma_copy(
                                    x[begin + first : begin + first + LOADED, at : at + 64],
                                    xs[s, unit, first : first + LOADED, :],
                                    barrier=full[s],
                                )
                        T.mbarrier_arrive(full[s])
                else:
                    T.set_max_nreg(REGISTERS, 1)
                    if hopper:
                        T.call_extern(
                            "handle", consume, T.address_of(staged[0, 0, 0, 0]), T.address_of(xs[0, 0, 0, 0]),
                            T.address_of(full[0]), T.address_of(empty[0]), T.address_of(ys[0, 0]), pitch,
                            T.address_of(weights[begin]), active, limit,
                        )  # fmt: skip
                    else:
                        multiply(staged, xs, full, empty, ys, weights, begin, active, limit, tx)
                    T.sync_threads(1, THREADS)
                    store = "di_store_hidden" if gated else "di_store_tile"
                    options = f"{TILE}, {columns}, {THREADS}" + (f", {str(cast).lower()}" if gated else "")
                    T.call_extern(
                        "handle", f"{store}<{options}>", T.address_of(ys[0, 0]), pitch,
                        T.address_of(y[begin, slab * columns]), width, width - slab * columns, active,
                    )  # fmt: skip

    return wide_product
