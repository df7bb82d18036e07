"""The tokens that min-p, top-p and top-k leave of a row: their mass, and the last of them in its order."""

import tilelang.language as T

from deepinfer_cuda.tl.sampling.block import BUCKETS, LISTED, RANK_BITS, bucket_of, read_turn, relative, sum_up
from deepinfer_cuda.tl.sampling.parts import meet, of_part, sum_of_parts
from deepinfer_cuda.tl.sampling.rows import WARP, pure


@T.macro
def add_up(b, ordered) -> None:
    """``total``: the mass of the row; for rows that are cut, where it lies in the histogram."""
    if b.thread == 0:
        b.found[0] = T.int64(-1)
        b.found[3] = T.int64(0)
    if ordered:
        for i in T.serial(b.each):
            b.tally[b.thread + i * b.threads] = T.uint32(0)
            b.masses[b.thread + i * b.threads] = T.uint32(0)
            b.masses[b.thread + i * b.threads + BUCKETS] = T.uint32(0)
        T.sync_threads()
    b.total[0] = T.int64(0)
    for i in T.unroll(b.turns, unroll_factor=2048 // b.threads):
        read_turn(b, b.first + i * b.chunk)
        for v in T.unroll(b.vector):
            e = relative(b, b.values[v])
            if e >= b.least:
                b.total[0] = b.total[0] + pure("int64", "di_mass", e)
                if ordered:
                    bucket = bucket_of(b, b.values[v])
                    T.call_extern(
                        "handle",
                        "di_add_mass",
                        T.address_of(b.masses[bucket]),
                        T.address_of(b.masses[BUCKETS + bucket]),
                        pure("int64", "di_mass", e),
                    )
                    if b.room < T.int64(b.width):
                        T.call_extern("handle", "di_increment", T.address_of(b.tally[bucket]))
    sum_up(b, b.total, b.sums)


@T.macro
def find_bucket(b, limit) -> None:
    """``found``: the bucket of the last token to stay, and tokens and mass before it; -1 where all stay."""
    b.number[0] = T.int64(0)
    b.part[0] = T.int64(0)
    for i in T.unroll(b.each):
        b.held[i] = sum_of_parts(b.tally[b.thread * b.each + i], b.parts)
        b.weight[i] = sum_of_parts(b.masses[BUCKETS + b.thread * b.each + i], b.parts) << T.int64(32)
        b.weight[i] = b.weight[i] + sum_of_parts(b.masses[b.thread * b.each + i], b.parts)
    for i in T.unroll(b.each):
        b.number[0] = b.number[0] + b.held[i]
        b.part[0] = b.part[0] + b.weight[i]
    b.before[0] = T.call_extern("int64", "di_warp_scan", b.number[0])
    b.before[1] = T.call_extern("int64", "di_warp_scan", b.part[0])
    T.sync_threads()
    if b.lane == WARP - 1:
        b.counts[b.warp] = b.before[0]
        b.sums[b.warp] = b.before[1]
    T.sync_threads()
    b.before[0] = b.before[0] - b.number[0]
    b.before[1] = b.before[1] - b.part[0]
    for w in T.serial(b.warps):
        if w < b.warp:
            b.before[0] = b.before[0] + b.counts[w]
            b.before[1] = b.before[1] + b.sums[w]
    for i in T.unroll(b.each):
        b.number[0] = b.before[0] + b.held[i]
        b.part[0] = b.before[1] + b.weight[i]
        if (b.before[1] <= limit) and (b.before[0] < b.room) and ((b.part[0] > limit) or (b.number[0] >= b.room)):
            b.found[0] = T.cast(b.thread * b.each + i, "int64")
            b.found[1] = b.before[0]
            b.found[2] = b.before[1]
        b.before[0] = b.number[0]
        b.before[1] = b.part[0]
    meet(b.parts)


@T.macro
def list_bucket(b) -> None:
    """The tokens of that bucket, in the shared memory of the row's first block."""
    b.size[0] = T.cast(b.found[0], "int32")
    for i in T.serial(b.turns):
        read_turn(b, b.first + i * b.chunk)
        for v in T.unroll(b.vector):
            if (bucket_of(b, b.values[v]) == b.size[0]) and (relative(b, b.values[v]) >= b.least):
                T.call_extern(
                    "handle",
                    f"di_list_first<{LISTED}>" if b.parts > 1 else f"di_list<{LISTED}>",
                    T.address_of(b.listed[0]),
                    T.address_of(b.found[3]),
                    pure("uint64", "di_rank", b.values[v], b.first + i * b.chunk + v),
                )
    meet(b.parts)


@T.macro
def sort_bucket(b, many, limit) -> None:
    """``cut``: the rank of the last token to stay, ``total``: the mass up to it. The bucket's tokens are sorted."""
    if b.rank == 0:
        b.size[0] = T.call_extern("int32", "di_power", T.cast(many, "int32"))
        for i in T.serial(T.ceildiv(b.size[0], b.threads)):
            if (b.thread + i * b.threads < b.size[0]) and (T.cast(b.thread + i * b.threads, "int64") >= many):
                b.listed[b.thread + i * b.threads] = T.uint64(0)
        T.sync_threads()
        T.call_extern("handle", f"di_sort_falling<{b.threads}>", T.address_of(b.listed[0]), b.size[0])
        # Running mass along the sorted tokens, `block` of them at a time.
        b.before[0] = b.found[1]
        b.before[1] = b.found[2]
        for i in T.serial(T.ceildiv(b.size[0], b.threads)):
            b.part[0] = T.int64(0)
            if T.cast(b.thread + i * b.threads, "int64") < many:
                b.part[0] = pure(
                    "int64",
                    "di_mass",
                    pure(
                        "float32",
                        "di_relative",
                        pure("float32", "di_value", b.listed[b.thread + i * b.threads]),
                        b.peak,
                        b.heat,
                        b.cold,
                    ),
                )
            b.number[0] = b.part[0]
            b.part[0] = T.call_extern("int64", "di_warp_scan", b.part[0])
            T.sync_threads()
            if b.lane == WARP - 1:
                b.sums[b.warp] = b.part[0]
            T.sync_threads()
            for w in T.serial(b.warps):
                if w < b.warp:
                    b.part[0] = b.part[0] + b.sums[w]
            # The running mass with this token is before + part, without it less its own.
            if (
                (T.cast(b.thread + i * b.threads, "int64") < many)
                and (b.before[1] + b.part[0] - b.number[0] <= limit)
                and (b.before[0] + T.cast(b.thread + i * b.threads, "int64") < b.room)
                and (
                    (b.before[1] + b.part[0] > limit)
                    or (b.before[0] + T.cast(b.thread + i * b.threads, "int64") + T.int64(1) >= b.room)
                )
            ):
                b.last[0] = b.listed[b.thread + i * b.threads]
                b.last[1] = T.cast(b.before[1] + b.part[0], "uint64")
            for w in T.serial(b.warps):
                b.before[1] = b.before[1] + b.sums[w]
    meet(b.parts)
    b.cut[0] = of_part("uint64", b.last[0], 0, b.parts)
    b.total[0] = T.cast(of_part("uint64", b.last[1], 0, b.parts), "int64")
    if b.parts > 1:
        meet(b.parts)


@T.macro
def search_bits(b, limit) -> None:
    """The same for a bucket that does not fit: bit by bit, reading the row each time."""
    for bit in T.serial(RANK_BITS + 1):
        # The last turn takes the mass of what was found.
        trial = T.if_then_else(
            bit < RANK_BITS,
            b.cut[0] | (T.uint64(1) << T.cast(RANK_BITS - 1 - bit, "uint64")),
            b.cut[0],
        )
        b.number[0] = T.int64(0)
        b.part[0] = T.int64(0)
        for i in T.serial(b.turns):
            read_turn(b, b.first + i * b.chunk)
            for v in T.unroll(b.vector):
                if pure("uint64", "di_rank", b.values[v], b.first + i * b.chunk + v) >= trial:
                    e = relative(b, b.values[v])
                    if e >= b.least:
                        b.number[0] = b.number[0] + T.int64(1)
                        b.part[0] = b.part[0] + pure("int64", "di_mass", e)
        sum_up(b, b.number, b.counts)
        sum_up(b, b.part, b.sums)
        if bit < RANK_BITS:
            if (b.part[0] > limit) or (b.number[0] >= b.room):
                b.cut[0] = trial
        else:
            b.total[0] = b.part[0]
