"""A token of each row, drawn from the distribution that min-p, top-p and top-k leave (``spec/sampling.md`` 2.2, 2.5).

A block a row, and nothing of the row is written unless its log-probabilities are asked for. Masses and weights are
integers, so every sum has one value whatever the order, and the result is that of sorting the row. In passes over it:

1. the mass of all tokens, and for rows with top-p or top-k a histogram over the scaled logit, 64 buckets to a factor of
   e: the bucket that holds the last token to stay is found by its running sums;
2. that bucket's tokens are sorted in shared memory, and the last one to stay is found exactly, the lowest ids first
   among equals. Should they not fit, a search by bits reads the row again and again: slow, right, and rare;
3. the weights of what stays, summed by each warp over a stretch of the row of its own, and the drawn token within the
   stretch that it falls into. With coupled noise: the best token after noise instead. Or the log-probabilities.
"""

from typing import Any

import tilelang.language as T

from deepinfer_cuda.jit import kernel
from deepinfer_cuda.tl.sampling.rows import ROWS, WARP, pure, read

BUCKETS = 2048
LISTED = 8192
"""Tokens of a bucket that fit into shared memory; a power of two."""
RANK_BITS = 50
NO_LIMIT = 1 << 31
"""``top_p`` of a row without one."""
DRAW, NOISE, ALL = "draw", "noise", "all"
"""What a launch gives: the canonical draw, the best token after coupled noise, or all log-probabilities."""
CASES = [
    {"width": width, "vector": vector, "result": result}
    for result in (DRAW, NOISE, ALL)
    for width, vector in ((1536, 4), (1527, 1), (129280, 4))
]


@kernel(cases=CASES)
def choose(*, width: int, vector: int, result: str, threads: int = 512) -> Any:
    """``vector``: values read at once; 4 needs a width that is a multiple, and rows at multiples of 16 bytes.

    With ``all``, ``logprobs`` is ``[rows, width]`` and ``tokens`` is not written.
    """
    rows, stride = T.dynamic("rows"), T.dynamic("stride")
    warps = threads // WARP
    chunk = WARP * vector
    turns = -(-width // (warps * chunk))
    each = BUCKETS // threads
    told = (rows, width) if result == ALL else (rows,)

    @T.macro
    def gather(value: Any, sums: Any, thread: Any) -> None:
        """The sum of ``value[0]`` over the block, in every thread."""
        value[0] = T.call_extern("int64", "di_warp_sum", value[0])
        T.sync_threads()
        if thread % WARP == 0:
            sums[thread // WARP] = value[0]
        T.sync_threads()
        value[0] = T.int64(0)
        for w in T.serial(warps):
            value[0] = value[0] + sums[w]

    @T.prim_func
    def choose(
        logits: T.StridedTensor((rows, width), (stride, 1), "float32"),
        peaks: T.Tensor((rows,), "float32"),
        temperature: T.Tensor((rows,), "float32"),
        min_p: T.Tensor((rows,), "float32"),
        top_p: T.Tensor((rows,), "int64"),
        top_k: T.Tensor((rows,), "int64"),
        keys: T.Tensor((rows,), "int64"),
        tokens: T.Tensor((rows,), "int64"),
        logprobs: T.Tensor(told, "float32"),
    ):
        with T.Kernel(rows, threads=threads, prelude=ROWS) as row:
            T.annotate_min_blocks_per_sm(2)
            thread = T.get_thread_binding()
            warp = thread // WARP
            lane = thread % WARP
            first = warp * (turns * chunk) + lane * vector  # of the stretch that this warp reads

            values = T.alloc_local((vector,), "float32")
            tally = T.alloc_shared((BUCKETS,), "uint32")
            masses = T.alloc_shared((BUCKETS,), "uint64")
            listed = T.alloc_shared((LISTED,), "uint64")
            sums = T.alloc_shared((warps,), "int64")
            counts = T.alloc_shared((warps,), "int64")
            found = T.alloc_shared((4,), "int64")  # bucket, tokens before it, mass before it, tokens listed
            last = T.alloc_shared((2,), "uint64")  # rank of the last token to stay, mass up to it
            total = T.alloc_local((1,), "int64")
            part = T.alloc_local((1,), "int64")
            number = T.alloc_local((1,), "int64")
            before = T.alloc_local((2,), "int64")  # tokens and mass before what is looked at
            cut = T.alloc_local((1,), "uint64")
            size = T.alloc_local((1,), "int32")
            swapped = T.alloc_local((2,), "uint64")
            best = T.alloc_local((2,), "uint64")

            peak = peaks[row]
            heat = temperature[row]
            least = min_p[row]
            room = top_k[row]
            ordered = (top_p[row] < T.int64(NO_LIMIT)) or (room < T.int64(width))

            # 1. The mass of the row, and where it lies.
            if thread == 0:
                found[0] = T.int64(-1)
                found[3] = T.int64(0)
            if ordered:
                for i in T.serial(each):
                    tally[thread + i * threads] = T.uint32(0)
                    masses[thread + i * threads] = T.uint64(0)
                T.sync_threads()
            total[0] = T.int64(0)
            for i in T.unroll(turns, unroll_factor=4):
                read(values, logits, row, first + i * chunk, width, vector)
                for v in T.unroll(vector):
                    e = pure("float32", "di_relative", values[v], peak, heat)
                    if e >= least:
                        total[0] = total[0] + pure("int64", "di_mass", e)
                        if ordered:
                            bucket = pure("int32", "di_bucket", values[v], peak, heat)
                            T.call_extern(
                                "handle",
                                "di_count",
                                T.address_of(tally[bucket]),
                                T.address_of(masses[bucket]),
                                pure("int64", "di_mass", e),
                            )
            gather(total, sums, thread)

            cut[0] = T.uint64(0)
            if ordered:
                limit = pure("int64", "di_part", total[0], top_p[row])
                number[0] = T.int64(0)
                part[0] = T.int64(0)
                for i in T.serial(each):
                    number[0] = number[0] + T.cast(tally[thread * each + i], "int64")
                    part[0] = part[0] + T.cast(masses[thread * each + i], "int64")
                before[0] = T.call_extern("int64", "di_warp_scan", number[0])
                before[1] = T.call_extern("int64", "di_warp_scan", part[0])
                T.sync_threads()
                if lane == WARP - 1:
                    counts[warp] = before[0]
                    sums[warp] = before[1]
                T.sync_threads()
                before[0] = before[0] - number[0]
                before[1] = before[1] - part[0]
                for w in T.serial(warps):
                    if w < warp:
                        before[0] = before[0] + counts[w]
                        before[1] = before[1] + sums[w]
                for i in T.serial(each):
                    number[0] = before[0] + T.cast(tally[thread * each + i], "int64")
                    part[0] = before[1] + T.cast(masses[thread * each + i], "int64")
                    if (before[1] <= limit) and (before[0] < room) and ((part[0] > limit) or (number[0] >= room)):
                        found[0] = T.cast(thread * each + i, "int64")
                        found[1] = before[0]
                        found[2] = before[1]
                    before[0] = number[0]
                    before[1] = part[0]
                T.sync_threads()

                if found[0] >= T.int64(0):
                    # 2. The tokens of the bucket, and the last of them that stays.
                    size[0] = T.cast(found[0], "int32")
                    for i in T.serial(turns):
                        read(values, logits, row, first + i * chunk, width, vector)
                        for v in T.unroll(vector):
                            if (pure("int32", "di_bucket", values[v], peak, heat) == size[0]) and (
                                pure("float32", "di_relative", values[v], peak, heat) >= least
                            ):
                                T.call_extern(
                                    "handle",
                                    f"di_list<{LISTED}>",
                                    T.address_of(listed[0]),
                                    T.address_of(found[3]),
                                    pure("uint64", "di_rank", values[v], first + i * chunk + v),
                                )
                    T.sync_threads()
                    if found[3] <= T.int64(LISTED):
                        size[0] = T.call_extern("int32", "di_power", T.cast(found[3], "int32"))
                        for i in T.serial(T.ceildiv(size[0], threads)):
                            if (thread + i * threads < size[0]) and (T.cast(thread + i * threads, "int64") >= found[3]):
                                listed[thread + i * threads] = T.uint64(0)
                        T.sync_threads()
                        T.call_extern("handle", f"di_sort_falling<{threads}>", T.address_of(listed[0]), size[0])
                        # Running mass along the sorted tokens, `block` of them at a time.
                        before[0] = found[1]
                        before[1] = found[2]
                        for i in T.serial(T.ceildiv(size[0], threads)):
                            part[0] = T.int64(0)
                            if T.cast(thread + i * threads, "int64") < found[3]:
                                part[0] = pure(
                                    "int64",
                                    "di_mass",
                                    pure(
                                        "float32",
                                        "di_relative",
                                        pure("float32", "di_value", listed[thread + i * threads]),
                                        peak,
                                        heat,
                                    ),
                                )
                            number[0] = part[0]
                            part[0] = T.call_extern("int64", "di_warp_scan", part[0])
                            T.sync_threads()
                            if lane == WARP - 1:
                                sums[warp] = part[0]
                            T.sync_threads()
                            for w in T.serial(warps):
                                if w < warp:
                                    part[0] = part[0] + sums[w]
                            # The running mass with this token is before + part, without it less its own.
                            if (
                                (T.cast(thread + i * threads, "int64") < found[3])
                                and (before[1] + part[0] - number[0] <= limit)
                                and (before[0] + T.cast(thread + i * threads, "int64") < room)
                                and (
                                    (before[1] + part[0] > limit)
                                    or (before[0] + T.cast(thread + i * threads, "int64") + T.int64(1) >= room)
                                )
                            ):
                                last[0] = listed[thread + i * threads]
                                last[1] = T.cast(before[1] + part[0], "uint64")
                            for w in T.serial(warps):
                                before[1] = before[1] + sums[w]
                        T.sync_threads()
                        cut[0] = last[0]
                        total[0] = T.cast(last[1], "int64")
                    else:
                        for bit in T.serial(RANK_BITS + 1):
                            # The last turn takes the mass of what was found.
                            trial = T.if_then_else(
                                bit < RANK_BITS,
                                cut[0] | (T.uint64(1) << T.cast(RANK_BITS - 1 - bit, "uint64")),
                                cut[0],
                            )
                            number[0] = T.int64(0)
                            part[0] = T.int64(0)
                            for i in T.serial(turns):
                                read(values, logits, row, first + i * chunk, width, vector)
                                for v in T.unroll(vector):
                                    if pure("uint64", "di_rank", values[v], first + i * chunk + v) >= trial:
                                        e = pure("float32", "di_relative", values[v], peak, heat)
                                        if e >= least:
                                            number[0] = number[0] + T.int64(1)
                                            part[0] = part[0] + pure("int64", "di_mass", e)
                            gather(number, counts, thread)
                            gather(part, sums, thread)
                            if bit < RANK_BITS:
                                if (part[0] > limit) or (number[0] >= room):
                                    cut[0] = trial
                            else:
                                total[0] = part[0]

            # 3. The draw.
            share = T.cast(total[0], "float32") / T.float32(2.0**44)
            log_total = pure("float32", "logf", share)
            if result == ALL:
                for i in T.serial(turns):
                    read(values, logits, row, first + i * chunk, width, vector)
                    for v in T.unroll(vector):
                        if (pure("float32", "di_relative", values[v], peak, heat) >= least) and (
                            pure("uint64", "di_rank", values[v], first + i * chunk + v) >= cut[0]
                        ):
                            values[v] = pure("float32", "di_scaled", values[v], peak, heat) - log_total
                        else:
                            values[v] = -T.infinity("float32")
                    if first + i * chunk < width:
                        T.call_extern(
                            "handle",
                            f"di_store<{vector}>",
                            T.address_of(logprobs[row, first + i * chunk]),
                            T.address_of(values[0]),
                        )
            elif result == NOISE:
                best[0] = T.uint64(0)
                best[1] = T.uint64(0)
                for i in T.serial(turns):
                    read(values, logits, row, first + i * chunk, width, vector)
                    for v in T.unroll(vector):
                        noisy = pure(
                            "uint64",
                            "di_noisy",
                            pure("float32", "di_scaled", values[v], peak, heat) - log_total,
                            keys[row],
                            first + i * chunk + v,
                        )
                        if (
                            (pure("uint64", "di_rank", values[v], first + i * chunk + v) >= cut[0])
                            and (pure("float32", "di_relative", values[v], peak, heat) >= least)
                            and (noisy > best[0])
                        ):
                            best[0] = noisy
                            best[1] = T.cast(0x3FFFF - (first + i * chunk + v), "uint64")
                swapped[0] = T.call_extern("uint64", "di_warp_max", best[0])
                if best[0] != swapped[0]:
                    best[1] = T.uint64(0)
                swapped[1] = T.call_extern("uint64", "di_warp_max", best[1])
                T.sync_threads()
                if lane == 0:
                    listed[warp] = swapped[0]
                    listed[warps + warp] = swapped[1]
                T.sync_threads()
                if thread == 0:
                    for w in T.serial(1, warps):
                        if (listed[w] > swapped[0]) or ((listed[w] == swapped[0]) and (listed[warps + w] > swapped[1])):
                            swapped[0] = listed[w]
                            swapped[1] = listed[warps + w]
                    token = 0x3FFFF - T.cast(swapped[1], "int32")
                    tokens[row] = T.cast(token, "int64")
                    logprobs[row] = pure("float32", "di_scaled", logits[row, token], peak, heat) - log_total
            else:
                part[0] = T.int64(0)
                for i in T.unroll(turns, unroll_factor=4):
                    read(values, logits, row, first + i * chunk, width, vector)
                    for v in T.unroll(vector):
                        e = pure("float32", "di_relative", values[v], peak, heat)
                        if (e >= least) and (
                            (cut[0] == T.uint64(0))
                            or (pure("uint64", "di_rank", values[v], first + i * chunk + v) >= cut[0])
                        ):
                            part[0] = part[0] + pure("int64", "di_weight", e, share)
                part[0] = T.call_extern("int64", "di_warp_sum", part[0])
                T.sync_threads()
                if lane == 0:
                    sums[warp] = part[0]
                T.sync_threads()
                part[0] = T.int64(0)
                for w in T.serial(warps):
                    part[0] = part[0] + sums[w]
                before[0] = pure("int64", "di_target", keys[row], part[0])
                before[1] = T.int64(0)  # weight of the stretches before this warp's
                for w in T.serial(warps):
                    if w < warp:
                        before[1] = before[1] + sums[w]
                if (before[1] <= before[0]) and (before[0] < before[1] + sums[warp]):
                    for i in T.serial(turns):
                        read(values, logits, row, first + i * chunk, width, vector)
                        part[0] = T.int64(0)
                        for v in T.unroll(vector):
                            e = pure("float32", "di_relative", values[v], peak, heat)
                            if (e >= least) and (pure("uint64", "di_rank", values[v], first + i * chunk + v) >= cut[0]):
                                part[0] = part[0] + pure("int64", "di_weight", e, share)
                        number[0] = T.call_extern("int64", "di_warp_scan", part[0])
                        # Of the lanes, one holds the token, in one turn.
                        if (before[1] + number[0] - part[0] <= before[0]) and (before[0] < before[1] + number[0]):
                            part[0] = before[1] + number[0] - part[0]
                            for v in T.unroll(vector):
                                e = pure("float32", "di_relative", values[v], peak, heat)
                                if (e >= least) and (
                                    pure("uint64", "di_rank", values[v], first + i * chunk + v) >= cut[0]
                                ):
                                    if (part[0] <= before[0]) and (
                                        before[0] < part[0] + pure("int64", "di_weight", e, share)
                                    ):
                                        tokens[row] = T.cast(first + i * chunk + v, "int64")
                                        logprobs[row] = pure("float32", "di_scaled", values[v], peak, heat) - log_total
                                    part[0] = part[0] + pure("int64", "di_weight", e, share)
                        before[1] = before[1] + T.shfl_sync(number[0], WARP - 1)

    return choose
