"""Products of FP8 weights with at most 4 rows: a weight goes from memory to registers and is multiplied there.

A block has 16 outputs, or 32, and all inputs, which its warps share; so there is no cluster, no ring of stages and one
barrier. All codes that a warp can hold are asked for before the kernel in front is done (programmatic dependent
launch); what is left after it are the rows, products, and one sum over the warps. The price: each block reads all
rows, M / 8 times the bytes of its codes with 16 outputs, hence few rows. The operand of ``mma`` of 16 outputs is that
of ``wgmma`` of 64, so the layout of the weight is the one that ``blocks.py`` reads.
"""

from importlib.resources import files
from typing import Any

import tilelang.language as T

from deepinfer_cuda.jit import kernel
from deepinfer_cuda.tl.dense.blocks import PRODUCTS
from deepinfer_cuda.tl.parts.cuts import CHUNK, STREAM_ROWS, STREAMS, stream_of

STREAM = PRODUCTS + files(__package__).joinpath("streams.cuh").read_text(encoding="utf-8")


@kernel(cases=[case for shape in STREAMS for rows in STREAM_ROWS if (case := stream_of(*shape, rows))])
def stream_rows(
    *,
    outputs: int,
    inputs: int,
    pieces: int,
    warps: int,
    depth: int,
    rows: int,
    blocks: int,
    out: str = "bfloat16",
    groups: int = 1,
) -> Any:
    """``x`` bf16 ``[M, groups * inputs]`` times codes of ``groups`` weights of ``outputs``, at most ``rows`` rows.

    :param pieces: of 16 outputs each, in a block. :param warps: share the chunks of the inputs evenly.
    :param depth: chunks of a warp on their way. :param blocks: of a multiprocessor at least.
    """
    count = T.dynamic("count")
    tile, chunks, all_outputs = 16 * pieces, inputs // CHUNK, groups * outputs
    room_bytes = warps * rows * (chunks // warps * 64 + 16) + warps * rows * tile * 4
    kind = "float" if out == "float32" else "__nv_bfloat16"

    @T.prim_func
    def stream_rows(
        x: T.Tensor((count, groups * inputs), "bfloat16"),
        weight: T.Tensor((all_outputs // 16, chunks, 128), "uint32"),
        factors: T.Tensor((all_outputs // 32, chunks), "uint32"),
        y: T.Tensor((count, all_outputs), out),
    ):
        with T.Kernel(all_outputs // tile, threads=32 * warps, prelude=STREAM) as block:
            T.annotate_min_blocks_per_sm(blocks)
            room = T.alloc_shared((room_bytes // 4,), "float32")
            T.pdl_trigger()
            T.call_extern(
                "handle", f"di_stream_rows<{pieces}, {warps}, {chunks}, {depth}, {rows}, {kind}>",
                T.address_of(room[0]), T.address_of(weight[0, 0, 0]), T.address_of(factors[0, 0]),
                T.address_of(x[0, 0]), T.address_of(y[0, 0]), block, block * tile // outputs * inputs,
                groups * inputs, all_outputs, count,
            )  # fmt: skip
            T.pdl_sync()  # the text has waited already; this tells the launch

    return stream_rows
