"""The ``k`` best columns of a row in ascending order; of equals at the cut the first (``spec/kernels.md`` 2.4).

One block of threads holds a whole row, or a segment of it, in registers, so the row is read once:

1. Each thread takes the largest of each of its groups of values. The k-th largest of these is not above the k-th
   largest value of the row, and usually leaves little more than ``k`` values at or above it. A histogram between the
   smallest and the largest of them finds it, but for the width of a bucket.
2. Those values go to a pool in shared memory. A histogram of them finds the bucket of the k-th, another one divides
   that bucket, until it holds wanted values only or equal ones. Too many for the pool, which takes an odd order of the
   row: the values in registers are counted instead.
3. What is chosen becomes bits in the order of the row; prefix sums over the bits tell every chosen value its place, and
   of those at the cut only the first are taken.

Values are compared as the integers that order like them; what is never chosen (-inf, NaN, past the end) is 0. Nothing
depends on the order in which threads arrive. Steps 1 and 2 are ``select.cuh``.
"""

from importlib.resources import files

import tilelang
import tilelang.language as T

from deepinfer_cuda.jit import kernel
from deepinfer_cuda.tl.parts.block_sums import block_prefix

UNCHECKED = {tilelang.PassConfigKey.TL_DISABLE_SAFE_MEMORY_ACCESS: True}
SELECT = files(__package__).joinpath("select.cuh").read_text(encoding="utf-8")
GT_BITS = 13
"""Bits of a packed count that hold how many lie above the cut: at most 4,096 are wanted."""


def shapes(n: int) -> tuple[int, int]:
    """Threads of a block and values a thread for segments of ``n`` columns, at most 32,768."""
    return next((shape for shape in SHAPES if n <= shape[0] * shape[1]), SHAPES[-1])


SHAPES = ((128, 8), (256, 8), (512, 16), (512, 32), (1024, 32))


def groups_for(k: int, threads: int, per_thread: int) -> int:
    """Maxima a thread takes: twice ``k`` of a block, and not fewer than for 512, so that small ``k`` share a kernel."""
    return min(per_thread, max(1024 // threads, 1 << max(0, (2 * k - 1) // threads).bit_length()))


def _case(dtype: str, shape: tuple[int, int], k: int = 512, **options: bool) -> dict[str, object]:
    given = {"vector": True, "values": False, "shifted": False, "mapped": False, **options}
    return {"dtype": dtype, "threads": shape[0], "per_thread": shape[1], "groups": groups_for(k, *shape), **given}


CASES = [
    *(_case("float32", shape, vector=vector) for shape in SHAPES for vector in (True, False)),
    *(_case("bfloat16", shape) for shape in (SHAPES[1], SHAPES[2], SHAPES[4])),
    *(_case("float32", SHAPES[4], k) for k in (2048, 4096)),
    _case("float32", SHAPES[4], values=True),
    _case("float32", SHAPES[1], mapped=True),
]


@kernel(cases=CASES, pass_configs=UNCHECKED)
def topk_rows(
    *,
    dtype: str,
    threads: int,
    per_thread: int,
    groups: int,
    vector: bool = True,
    values: bool = False,
    shifted: bool = False,
    mapped: bool = False,
):
    """Top-k of each segment of ``threads * per_thread`` columns.

    Arguments: scores as they lie in memory, from row to row in units of one value or of four (``vector``: then rows
    begin at multiples of 16 bytes), columns of a row, segments of a row, past-the-last column of each row int32
    ``[T]``, an int32 ``[T]`` that is added to the chosen positions (``shifted``), int32 ``[T, n]`` that names the
    position of each column (``mapped``: then all columns count), out int32 ``[T, segments, k]``, its scores fp32
    (``values``). For an argument that an option turns off, any tensor of that shape.

    :param groups: maxima a thread takes; ``groups * threads`` is twice ``k`` at best.
    """
    total, k, wide, width = T.dynamic("total, k, wide, width")
    some, elements = T.dynamic("some"), T.dynamic("elements", "int64")
    unit = 4 if vector else 1
    warps, segment = threads // 32, threads * per_thread
    words, pool = segment // 32, max(2, 2 * groups) * threads

    @T.prim_func
    def topk_rows(
        scores: T.Tensor((elements,), dtype),
        stride: T.int32,
        n: T.int32,
        segments: T.int32,
        end: T.Tensor((total,), "int32"),
        offset: T.Tensor((some,), "int32"),
        positions: T.Tensor((some, width), "int32"),
        out: T.Tensor((total, wide, k), "int32"),
        out_values: T.Tensor((total, wide, k), "float32"),
    ):
        with T.Kernel(segments, total, threads=threads, prelude=SELECT) as (part, row):
            T.annotate_min_blocks_per_sm(1536 // threads if per_thread <= 16 else 1024 // threads)
            tx = T.get_thread_binding()
            lane, warp = tx % 32, tx // 32
            keys = T.alloc_local((per_thread,), "uint32")
            sums = T.alloc_shared((4 * 32,), "int32")
            told_all = T.alloc_shared((4,), "int32")
            histogram = T.alloc_shared((2 * threads,), "uint32")
            pool_keys = T.alloc_shared((pool,), "uint32")
            pool_columns = T.alloc_shared((pool,), "uint16")
            marked = T.alloc_shared((2, words), "uint32")
            count = T.alloc_var("int32", init=0)
            found = T.alloc_var("int32", init=0)
            above = T.alloc_var("int32", init=0)
            before = T.alloc_var("int32", init=0)
            high = T.alloc_var("uint32", init=0)
            even = T.alloc_var("uint32", init=0)
            rest = T.alloc_var("uint32", init=0)
            told = T.alloc_local((2,), "int32")
            base = part * segment
            first = T.cast(row, "int64") * stride * unit
            stop = T.min(n if mapped else T.min(end[row], n), base + segment)

            T.call_extern(
                "handle", f"di_load_keys<{threads}, {per_thread}, {str(vector).lower()}>", T.address_of(keys[0]),
                T.address_of(scores[first + base]), stop - base,
            )  # fmt: skip
            T.call_extern(
                "handle", f"di_mark_best<{threads}, {per_thread}, {groups}, {pool}>", T.address_of(keys[0]), k,
                stop - base <= k, T.address_of(histogram[0]), T.address_of(pool_keys[0]),
                T.address_of(pool_columns[0]), T.address_of(marked[0, 0]), T.address_of(marked[1, 0]),
                T.address_of(sums[0]), T.address_of(told_all[0]),
            )  # fmt: skip

            # Places, in the order of the row: a thread has 32 neighbouring columns, a bit each.
            if tx < words:
                high = marked[0, tx]
                even = marked[1, tx]
            count = T.cast(T.popcount(high), "int32") + (T.cast(T.popcount(even), "int32") << GT_BITS)
            block_prefix(count, sums, 0, lane, warp, warps, told)
            above = told[0] & ((1 << GT_BITS) - 1)
            before = told[0] >> GT_BITS
            found = told[1]
            room = k - (found & ((1 << GT_BITS) - 1))
            taken = k - room + T.min(found >> GT_BITS, room)
            rest = high | even
            count = T.cast(T.popcount(rest), "int32")
            for _ in T.serial(count):
                i = T.alloc_var("int32")
                i = T.__ffs(T.cast(rest, "int32")) - 1
                rest = rest & (rest - T.uint32(1))
                is_cut = T.cast((even >> T.cast(i, "uint32")) & T.uint32(1), "int32")
                if is_cut == 0 or before < room:
                    at = base + tx * 32 + i
                    place = above + T.min(before, room)
                    shift = offset[row] if shifted else 0
                    out[row, part, place] = (positions[row, at] if mapped else at) + shift
                    if values:
                        out_values[row, part, place] = T.cast(scores[first + at], "float32")
                above += 1 - is_cut
                before += is_cut
            for i in T.serial(T.ceildiv(k - taken, threads)):
                if taken + i * threads + tx < k:
                    out[row, part, taken + i * threads + tx] = -1
                    if values:
                        out_values[row, part, taken + i * threads + tx] = -T.infinity("float32")

    return topk_rows
