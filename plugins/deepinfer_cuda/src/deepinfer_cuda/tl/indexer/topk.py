"""The ``k`` best columns of a row in ascending order; of equals at the cut the first (``spec/kernels.md`` 2.4).

One block of threads holds a whole row, or a segment of it, in registers, so the row is read once:

1. Each thread takes the largest of each of its groups of values. The k-th largest of these is not above the k-th
   largest value of the row, and usually leaves little more than ``k`` values above it. It is searched bit by bit, one
   barrier that counts a bit, and the search stops early when few enough groups are left.
2. If no more than ``k`` values lie above, the bound is the cut. Else those above are put into shared memory, where the
   cut is searched in the same way. Too many of them, which takes an odd arrangement of the row: it is searched in
   registers.
3. Each value's fate (above, at the cut) becomes a bit in the order of the row; prefix sums over the bits tell every
   chosen value its place, and of those at the cut only the first are taken.

Values are compared as the integers that order like them; what is never chosen (-inf, NaN, past the end) is 0. Nothing
depends on the order in which threads arrive.
"""

import tilelang
import tilelang.language as T

from deepinfer_cuda.jit import kernel
from deepinfer_cuda.tl.parts.block_sums import block_prefix, block_sum

UNCHECKED = {tilelang.PassConfigKey.TL_DISABLE_SAFE_MEMORY_ACCESS: True}
POSITIVE_INF_KEY, NEGATIVE_INF_KEY = 0xFF800000, 0x007FFFFF
GT_BITS = 13
"""Bits of a packed count that hold how many lie above the cut: at most 4,096 are wanted."""


def shapes(n: int) -> tuple[int, int]:
    """Threads of a block and values a thread for segments of ``n`` columns, at most 32,768."""
    return next((shape for shape in SHAPES if n <= shape[0] * shape[1]), SHAPES[-1])


@T.macro
def order_key(keys, i):
    """The fp32 bits in ``keys[i]`` become an integer that orders like it; 0 for what is never chosen."""
    bits = keys[i]
    plain = T.if_then_else(bits == T.uint32(0x80000000), T.uint32(0), bits)  # -0 equals 0
    flipped = T.if_then_else(plain >= T.uint32(0x80000000), ~plain, plain | T.uint32(0x80000000))
    keys[i] = T.if_then_else(
        T.And(flipped > T.uint32(NEGATIVE_INF_KEY), flipped <= T.uint32(POSITIVE_INF_KEY)), flipped, T.uint32(0)
    )


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
    size, kept = per_thread // groups, 2

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
        with T.Kernel(segments, total, threads=threads) as (part, row):
            T.annotate_min_blocks_per_sm(1024 // threads)
            tx = T.get_thread_binding()
            lane, warp = tx % 32, tx // 32
            keys = T.alloc_local((per_thread,), "uint32")
            best = T.alloc_local((groups,), "uint32")
            own = T.alloc_local((kept,), "uint32")
            sums = T.alloc_shared((4 * 32,), "int32")
            pool = T.alloc_shared((kept * threads,), "uint32")
            fates = T.alloc_shared((segment // 4,), "uint8")
            bound = T.alloc_var("uint32", init=0)
            cut = T.alloc_var("uint32", init=0)
            count = T.alloc_var("int32", init=0)
            found = T.alloc_var("int32", init=0)
            above = T.alloc_var("int32", init=0)
            before = T.alloc_var("int32", init=0)
            done = T.alloc_var("int32", init=0)
            high = T.alloc_var("uint32", init=0)
            even = T.alloc_var("uint32", init=0)
            rest = T.alloc_var("uint32", init=0)
            told = T.alloc_local((2,), "int32")
            base = part * segment
            first = T.cast(row, "int64") * stride * unit
            stop = T.min(n if mapped else T.min(end[row], n), base + segment)

            # A thread's values lie all over the row: near columns often have near scores.
            for j in T.unroll(per_thread // 4):
                at = base + (j * threads + tx) * 4
                raw = T.alloc_local((4,), dtype)
                if vector and at + 4 <= stop:
                    for i in T.vectorized(4):
                        raw[i] = scores[first + at + i]
                else:
                    for i in T.unroll(4):
                        raw[i] = T.if_then_else(at + i < stop, scores[first + T.min(at + i, n - 1)], -T.infinity(dtype))
                for i in T.unroll(4):
                    keys[j * 4 + i] = T.reinterpret(T.cast(raw[i], "float32"), "uint32")
            for i in T.unroll(per_thread):
                order_key(keys, i)

            # 1. A bound from the largest of each group.
            for g in T.unroll(groups):
                best[g] = 0
                for i in T.unroll(size):
                    best[g] = T.max(best[g], keys[i * groups + g])
            done = T.cast(stop - base <= k, "int32")  # all that is visible is chosen
            for b in T.serial(32):
                if done == 0:
                    trial = bound | (T.uint32(1) << T.cast(31 - b, "uint32"))
                    found = 0
                    for g in T.unroll(groups):
                        found += T.syncthreads_count(best[g] >= trial)
                    if found >= k:
                        bound = trial
                        if found <= k + k // 8:
                            done = 1

            # 2. The cut.
            found = 0
            for i in T.unroll(per_thread):
                found += T.cast(keys[i] > bound, "int32")
            block_prefix(found, sums, 0, lane, warp, warps, told)
            before = told[0]
            above = told[1]
            if above <= k:
                cut = bound
            else:
                if above <= kept * threads:
                    for i in T.unroll(per_thread):
                        if keys[i] > bound:
                            pool[before] = keys[i]
                            before += 1
                    T.sync_threads()
                    for i in T.unroll(kept):
                        own[i] = T.if_then_else(i * threads + tx < above, pool[i * threads + tx], T.uint32(0))
                done = 0
                count = above
                for b in T.serial(32):
                    if done == 0:
                        trial = cut | (T.uint32(1) << T.cast(31 - b, "uint32"))
                        found = 0
                        if count <= kept * threads:
                            for i in T.unroll(kept):
                                found += T.cast(own[i] >= trial, "int32")
                        else:
                            for i in T.unroll(per_thread):
                                found += T.cast(keys[i] >= trial, "int32")
                        block_sum(found, sums, 1 + b % 2, lane, warp, warps, told)
                        if told[1] >= k:
                            cut = trial
                            if told[1] == k:  # all of these and nothing else; there are more above the bound
                                cut = trial - T.uint32(1)
                                done = 1

            # 3. Places, in the order of the row.
            for j in T.unroll(per_thread // 4):
                fate = T.alloc_var("uint32")
                fate = T.uint32(0)
                for i in T.unroll(4):
                    fate |= T.if_then_else(keys[j * 4 + i] > cut, T.uint32(1 << i), T.uint32(0))
                    fate |= T.if_then_else(
                        T.And(keys[j * 4 + i] == cut, cut > T.uint32(0)), T.uint32(16 << i), T.uint32(0)
                    )
                fates[j * threads + tx] = T.cast(fate, "uint8")
            T.sync_threads()
            # From here on a thread has neighbouring columns, a bit each.
            high = T.uint32(0)
            even = T.uint32(0)
            for j in T.unroll(per_thread // 4):
                byte = T.cast(fates[tx * (per_thread // 4) + j], "uint32")
                high |= (byte & T.uint32(15)) << T.uint32(4 * j)
                even |= (byte >> T.uint32(4)) << T.uint32(4 * j)
            count = T.cast(T.popcount(high), "int32") + (T.cast(T.popcount(even), "int32") << GT_BITS)
            block_prefix(count, sums, 3, lane, warp, warps, told)
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
                    at = base + tx * per_thread + i
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
