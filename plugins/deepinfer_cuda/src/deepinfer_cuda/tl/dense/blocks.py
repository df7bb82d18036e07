"""Dense products with few rows: ``[M, K] x [N, K]^T``, the weight as the stationary operand.

The matrix units compute the transpose: 64 outputs of the weight by as many rows as there are, so that one row costs
little more than the bytes of the weight. FP8 weights are stored in the order of the register operand (``packed``), are
copied to shared memory as they are and become bf16 in registers. The inputs are cut into ``splits`` at places that
depend on the weight's shape alone; the blocks of a cut are a cluster, and each adds up its share of the outputs from
the sums of all of them, in order. So a row's bits do not depend on how many rows there are, nor on the tile
that was chosen for them.

A launch begins while the one before still runs (programmatic dependent launch): one warp fills the stages with the
weight, and waits for the other kernel only where it comes to the rows.
"""

from importlib.resources import files
from typing import Any

import tilelang.language as T

from deepinfer_cuda.jit import kernel
from deepinfer_cuda.tl.attention.softmax import on_hopper
from deepinfer_cuda.tl.parts.cuts import STEP, best_cut_of, cut_of, pipeline, rows_of_tile

_PARTS = files("deepinfer_cuda.tl.parts")
PRODUCTS = "\n".join(_PARTS.joinpath(f"{name}.cuh").read_text(encoding="utf-8") for name in ("ring", "products"))
ALIGNED = 32
"""Words that places of the copy engine in shared memory are apart at least; those behind the wanted ones are unused."""
COPIERS = 32
SENT_ROWS = 16
"""Rows up to which the blocks of a cluster send their sums, to memory of their own, and none waits for all. More rows
would cost stages; there, blocks read the sums of the others where the rows lay."""
_OPTIONS = {"tl.disable_safe_memory_legalize": True, "tl.disable_warp_specialized": True}
"""All that could pass an end goes through the copy engine, which stops there by itself. The roles of the warps are
written out below."""

E4M3, BF16 = ("e4m3", "bfloat16"), ("bf16", "bfloat16")
F32 = ("bf16", "float32")
SIZES: dict[tuple[str, str], list[tuple[int, ...]]] = {
    E4M3: [
        (1792, 5120), (32768, 1280), (36864, 1280), (5120, 8192), (1024, 4096, 8), (4608, 5120), (5120, 2304),
        (25600, 6144), (64, 256, 2), (128, 256), (192, 256), (256, 128), (512, 128), (640, 128),
    ],
    BF16: [(512, 5120), (128, 512), (32, 5120), (8, 256), (64, 256), (128, 256)],
    F32: [(1024, 5120), (384, 5120), (129280, 5120), (128, 256), (1536, 256)],
}  # fmt: skip
"""Outputs and inputs, and how many such weights lie side by side: of the released model and of the shipped one."""
RELEASED = SIZES[E4M3][:8]


def _case(form: tuple[str, str], rows: int, outputs: int, inputs: int, groups: int = 1) -> dict[str, Any]:
    shape = outputs, inputs, groups
    cut = best_cut_of(*shape, rows) if form[0] == "e4m3" else cut_of(*shape)
    if cut is None:
        raise ValueError(f"a weight of {outputs} x {inputs} has no cut")
    fmt, out = form
    rows = rows_of_tile(cut, rows, fmt == "e4m3")
    case = {"outputs": outputs, "inputs": inputs, "tile": cut.tile, "rows": rows, "splits": cut.splits, "fmt": fmt}
    return case | {"out": out, "groups": groups, **pipeline(cut, rows, fmt == "e4m3")}


CASES = [_case(form, 8, *size) for form, sizes in SIZES.items() for size in sizes]
CASES += [case for rows in (16, 32, 64) for size in RELEASED if (case := _case(E4M3, rows, *size)) not in CASES]


def by_row(shape: tuple[int, int]) -> Any:
    """Sums, and the register operand of 16 x 16 pieces: a thread has two neighbours of rows g and g + 8, twice."""
    return T.Fragment(
        shape,
        forward_thread_fn=lambda i, j: i // 16 * 32 + i % 8 * 4 + j % 8 // 2,
        forward_index_fn=lambda i, j: j // 8 * 4 + i % 16 // 8 * 2 + j % 2,
    )


@kernel(cases=CASES, pass_configs=_OPTIONS)
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
    ahead: bool = False,
) -> Any:
    """``x`` bf16 ``[M, inputs]`` times a weight of ``outputs``, ``tile`` of them and ``rows`` rows a block.

    Of ``groups`` weights, each has its inputs and outputs beside those of the others.

    :param outputs: of one weight any multiple of 8, of ``groups`` or of codes whole tiles.
    :param splits: pieces of the inputs, at most 8: the blocks of a cluster. Steps that they do not divide are spread.
    :param ahead: registers for two steps of codes, so that one is unpacked beside the product of the other.
    """
    count = T.dynamic("count")
    threads, tiles, steps = tile * 2, -(-groups * outputs // tile), inputs // STEP
    codes, all_outputs = fmt == "e4m3", groups * outputs
    stored = (all_outputs // 16, inputs // 32, 128) if codes else (all_outputs, inputs)
    held = min(stages, steps // splits)
    chunks = STEP // 32
    cluster = (1, splits, 1) if splits > 1 else None
    hopper = on_hopper()
    gemm = T.wgmma_gemm if hopper else T.gemm
    beside = codes and ahead
    sends = splits > 1 and rows <= SENT_ROWS
    received = splits * -(-tile * rows // 4 // splits) * 4 if sends else 4

    @T.macro
    def load_weight(weight, factors, packed, scales, loaded, s, bn, at):
        if codes:
            top = bn * (tile // 16)
            T.tma_copy(
                weight[top : top + tile // 16, at // 32 : at // 32 + chunks, :], packed[s, :, :, :], barrier=loaded[s]
            )
            block = bn * (tile // 32)
            T.tma_copy(
                factors[block : block + ALIGNED // chunks, at // 32 : at // 32 + chunks],
                scales[s, :, :],
                barrier=loaded[s],
            )
        else:
            T.tma_copy(weight[bn * tile : bn * tile + tile, at : at + STEP], packed[s, :, :], barrier=loaded[s])

    @T.macro
    def unpack(operand, packed, scales, loaded, k, thread):
        s = k % held
        T.mbarrier_wait_parity(loaded[s], k // held % 2)
        T.call_extern(
            "handle",
            f"di_unpack_e4m3<{chunks}>",
            T.address_of(operand[0, 0]),
            T.address_of(packed[s, thread // 32, 0, thread % 32 * 4]),
            T.address_of(scales[s, thread // 64, 0]),
        )

    @T.macro
    def multiply(total, weight, xs, come, k):
        T.mbarrier_wait_parity(come[k % held], k // held % 2)
        gemm(weight, xs[k % held, :, :], total, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)

    @T.macro
    def release(empty, k):
        if hopper:
            T.wait_wgmma(0)
        T.mbarrier_arrive(empty[k % held])

    @T.prim_func
    def dense_rows(
        x: T.Tensor((count, groups * inputs), "bfloat16"),
        weight: T.Tensor(stored, "uint32" if codes else "bfloat16"),
        factors: T.Tensor((-(-all_outputs // 32), inputs // 32), "uint32"),
        y: T.Tensor((count, all_outputs), out),
    ):
        with T.Kernel(
            tiles, splits, T.ceildiv(count, rows), threads=threads + COPIERS, cluster_dims=cluster, prelude=PRODUCTS
        ) as (bn, bs, bm):
            T.annotate_min_blocks_per_sm(blocks)
            thread = T.get_thread_binding()
            xs = T.alloc_shared((max(held, tile // 64), rows, STEP), "bfloat16")  # the sums lie here afterwards
            if codes:
                packed = T.alloc_shared((held, tile // 16, chunks, 128), "uint32")
            else:
                packed = T.alloc_shared((held, tile, STEP), "bfloat16")
            pieces = T.alloc_shared((received,), "float32")
            all_sent = T.alloc_shared((1,), "uint64")
            scales = T.alloc_shared((held, ALIGNED // chunks, chunks), "uint32")
            loaded = T.alloc_barrier([COPIERS] * held)
            come = T.alloc_barrier([COPIERS] * held)
            empty = T.alloc_barrier([threads] * held)
            begin = bs * steps // splits
            n = steps // splits if steps % splits == 0 else (bs + 1) * steps // splits - begin
            T.pdl_trigger()
            if sends:
                if thread == 0:
                    T.call_extern("handle", f"di_expect_sums<{tile}, {rows}, {splits}>", T.address_of(all_sent[0]), bs)
                T.sync_warp()
                T.call_extern("handle", "di_cluster_arrive")
            if thread >= threads:
                for k in T.serial(held):
                    load_weight(weight, factors, packed, scales, loaded, k, bn, (begin + k) * STEP)
                    T.mbarrier_arrive(loaded[k])
                T.pdl_sync()
                for k in T.serial(n):
                    s = k % held
                    at = (begin + k) * STEP
                    if k >= held:
                        T.mbarrier_wait_parity(empty[s], (k // held + 1) % 2)
                        load_weight(weight, factors, packed, scales, loaded, s, bn, at)
                        T.mbarrier_arrive(loaded[s])
                    left = (bn * tile // outputs * inputs if groups > 1 else 0) + at
                    T.tma_copy(x[bm * rows : bm * rows + rows, left : left + STEP], xs[s, :, :], barrier=come[s])
                    T.mbarrier_arrive(come[s])
                if sends:
                    T.call_extern("handle", "di_cluster_wait")
            else:
                total = T.alloc_fragment((tile, rows), "float32")
                T.annotate_layout({total: by_row((tile, rows))})
                T.clear(total)
                if codes:
                    even = T.alloc_fragment((tile, STEP), "bfloat16")
                    T.annotate_layout({even: by_row((tile, STEP))})
                if beside:
                    odd = T.alloc_fragment((tile, STEP), "bfloat16")
                    T.annotate_layout({odd: by_row((tile, STEP))})
                    unpack(even, packed, scales, loaded, 0, thread)
                    T.pdl_sync()
                    for pair in T.serial(n // 2):
                        multiply(total, even, xs, come, 2 * pair)
                        unpack(odd, packed, scales, loaded, 2 * pair + 1, thread)
                        release(empty, 2 * pair)
                        multiply(total, odd, xs, come, 2 * pair + 1)
                        if 2 * pair + 2 < n:
                            unpack(even, packed, scales, loaded, 2 * pair + 2, thread)
                        release(empty, 2 * pair + 1)
                    if n % 2 == 1:
                        multiply(total, even, xs, come, n - 1)
                        release(empty, n - 1)
                else:
                    T.pdl_sync()
                    for k in T.serial(n):
                        if codes:
                            unpack(even, packed, scales, loaded, k, thread)
                            multiply(total, even, xs, come, k)
                        else:
                            T.mbarrier_wait_parity(loaded[k % held], k // held % 2)
                            multiply(total, packed[k % held, :, :], xs, come, k)
                        release(empty, k)
                if sends:
                    T.call_extern("handle", "di_cluster_wait")  # all blocks are there
                    T.call_extern(
                        "handle", f"di_send_sums<{tile}, {rows}, {splits}>", T.address_of(total[0, 0]),
                        T.address_of(pieces[0]), T.address_of(all_sent[0]), bs, thread,
                    )  # fmt: skip
                    T.call_extern("handle", "di_await_sums", T.address_of(all_sent[0]))
                else:
                    T.sync_threads(1, threads)
                    T.call_extern(
                        "handle",
                        f"di_keep_sums<{tile}, {rows}>",
                        T.address_of(total[0, 0]),
                        T.address_of(xs[0, 0, 0]),
                        thread,
                    )
                    if splits == 1:
                        T.sync_threads(1, threads)
            if splits > 1 and not sends:
                T.cluster_arrive()
                T.cluster_wait()
            if thread < threads:
                kind = "float" if out == "float32" else "__nv_bfloat16"
                options = f"{tile}, {rows}, {splits}, {threads}, {str(sends).lower()}, {kind}"
                T.call_extern(
                    "handle", f"di_add_pieces<{options}>", T.address_of(pieces[0] if sends else xs[0, 0, 0]),
                    T.address_of(y[bm * rows, bn * tile]), all_outputs, count - bm * rows, all_outputs - bn * tile,
                    bs, thread,
                )  # fmt: skip
            if splits > 1 and not sends:
                T.call_extern("handle", "di_cluster_arrive")
                T.call_extern("handle", "di_cluster_wait")  # others still read the sums of this block

    return dense_rows
