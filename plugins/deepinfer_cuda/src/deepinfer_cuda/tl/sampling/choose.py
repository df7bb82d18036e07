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
from deepinfer_cuda.tl.sampling.parts import gather, meet, of_part, sum_of_parts
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
    *(
        {"width": 129280, "vector": 4, "result": r, "threads": 1024, "parts": p}
        for r in (DRAW, NOISE)
        for p in (8, 4, 2, 1)
    ),
    *({"width": 129280, "vector": 4, "result": r, "threads": 512, "parts": 1} for r in (DRAW, NOISE, ALL)),
    *(
        {"width": width, "vector": vector, "result": result, "threads": 512 if result == ALL else 1024, "parts": 1}
        for result in (DRAW, NOISE, ALL)
        for width, vector in ((1536, 4), (1527, 1))
    ),
]


@kernel(cases=CASES)
def choose(*, width: int, vector: int, result: str, threads: int, parts: int) -> Any:
    """``vector``: values read at once; 4 needs a width that is a multiple, and rows at multiples of 16 bytes.

    With ``all``, ``logprobs`` is ``[rows, width]`` and ``tokens`` is not written.

    :param parts: blocks of threads a row, 1 to 8.
    """
    rows, stride = T.dynamic("rows"), T.dynamic("stride")
    warps = threads // WARP
    chunk = WARP * vector
    turns = -(-width // (parts * warps * chunk))
    each = BUCKETS // threads
    told = (rows, width) if result == ALL else (rows,)

    @T.macro
    def weigh(own, v, values, token, peak, heat, cold, least, edge, edge_id, share, inverse) -> None:
        """``own[v]``: the weight of ``values[v]``, 0 for what does not stay."""
        e = pure("float32", "di_relative", values[v], peak, heat, cold)
        own[v] = T.uint32(0)
        if (e >= least) and pure("bool", "di_stays", values[v], token, edge[0], edge_id[0]):
            own[v] = pure("uint32", "di_weight", e, share, inverse)

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
        with T.Kernel(rows * parts, threads=threads, prelude=ROWS, cluster_dims=parts if parts > 1 else None) as block:
            T.annotate_min_blocks_per_sm(1024 // threads)
            thread = T.get_thread_binding()
            warp = thread // WARP
            lane = thread % WARP
            row = block // parts
            rank = block % parts
            first = (rank * warps + warp) * (turns * chunk) + lane * vector  # of the stretch that this warp reads

            values = T.alloc_local((vector,), "float32")
            own = T.alloc_local((vector,), "uint32")
            steps = T.alloc_shared((warps * turns,), "uint32")  # weight of each of a warp's turns
            tally = T.alloc_shared((BUCKETS,), "uint32")
            masses = T.alloc_shared((2 * BUCKETS,), "uint32")  # low words, then high words
            listed = T.alloc_shared((LISTED,), "uint64")
            sums = T.alloc_shared((warps,), "int64")
            counts = T.alloc_shared((warps,), "int64")
            held = T.alloc_local((each,), "int64")  # tokens and mass of a thread's buckets
            weight = T.alloc_local((each,), "int64")
            found = T.alloc_shared((4,), "int64")  # bucket, tokens before it, mass before it, tokens listed
            last = T.alloc_shared((2,), "uint64")  # rank of the last token to stay, mass up to it
            gross = T.alloc_shared((1,), "int64")
            total = T.alloc_local((1,), "int64")
            part = T.alloc_local((1,), "int64")
            number = T.alloc_local((1,), "int64")
            before = T.alloc_local((2,), "int64")  # tokens and mass before what is looked at
            cut = T.alloc_local((1,), "uint64")
            edge = T.alloc_local((1,), "float32")  # value and id of the last token to stay
            edge_id = T.alloc_local((1,), "int32")
            light = T.alloc_local((1,), "uint32")  # weights of a row are less than 2^32 together
            size = T.alloc_local((1,), "int32")
            swapped = T.alloc_local((2,), "uint64")
            best = T.alloc_local((2,), "uint64")

            peak = peaks[row]
            heat = temperature[row]
            cold = pure("float32", "__frcp_rn", heat)
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
                    masses[thread + i * threads] = T.uint32(0)
                    masses[thread + i * threads + BUCKETS] = T.uint32(0)
                T.sync_threads()
            total[0] = T.int64(0)
            for i in T.unroll(turns, unroll_factor=2048 // threads):
                read(values, logits, row, first + i * chunk, width, vector)
                for v in T.unroll(vector):
                    e = pure("float32", "di_relative", values[v], peak, heat, cold)
                    if e >= least:
                        total[0] = total[0] + pure("int64", "di_mass", e)
                        if ordered:
                            bucket = pure("int32", "di_bucket", values[v], peak, heat, cold)
                            T.call_extern(
                                "handle",
                                "di_add_mass",
                                T.address_of(masses[bucket]),
                                T.address_of(masses[BUCKETS + bucket]),
                                pure("int64", "di_mass", e),
                            )
                            if room < T.int64(width):
                                T.call_extern("handle", "di_increment", T.address_of(tally[bucket]))
            gather(total, before, sums, gross, thread, rank, warps, parts)

            cut[0] = T.uint64(0)
            if ordered:
                limit = pure("int64", "di_part", total[0], top_p[row])
                number[0] = T.int64(0)
                part[0] = T.int64(0)
                for i in T.unroll(each):
                    held[i] = sum_of_parts(tally[thread * each + i], parts)
                    weight[i] = sum_of_parts(masses[BUCKETS + thread * each + i], parts) << T.int64(32)
                    weight[i] = weight[i] + sum_of_parts(masses[thread * each + i], parts)
                for i in T.unroll(each):
                    number[0] = number[0] + held[i]
                    part[0] = part[0] + weight[i]
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
                for i in T.unroll(each):
                    number[0] = before[0] + held[i]
                    part[0] = before[1] + weight[i]
                    if (before[1] <= limit) and (before[0] < room) and ((part[0] > limit) or (number[0] >= room)):
                        found[0] = T.cast(thread * each + i, "int64")
                        found[1] = before[0]
                        found[2] = before[1]
                    before[0] = number[0]
                    before[1] = part[0]
                meet(parts)

                if found[0] >= T.int64(0):
                    # 2. The tokens of the bucket, and the last of them that stays.
                    size[0] = T.cast(found[0], "int32")
                    for i in T.serial(turns):
                        read(values, logits, row, first + i * chunk, width, vector)
                        for v in T.unroll(vector):
                            if (pure("int32", "di_bucket", values[v], peak, heat, cold) == size[0]) and (
                                pure("float32", "di_relative", values[v], peak, heat, cold) >= least
                            ):
                                T.call_extern(
                                    "handle",
                                    f"di_list_first<{LISTED}>" if parts > 1 else f"di_list<{LISTED}>",
                                    T.address_of(listed[0]),
                                    T.address_of(found[3]),
                                    pure("uint64", "di_rank", values[v], first + i * chunk + v),
                                )
                    meet(parts)
                    many = of_part("int64", found[3], 0, parts)
                    if many <= T.int64(LISTED):
                        if rank == 0:
                            size[0] = T.call_extern("int32", "di_power", T.cast(many, "int32"))
                            for i in T.serial(T.ceildiv(size[0], threads)):
                                if (thread + i * threads < size[0]) and (T.cast(thread + i * threads, "int64") >= many):
                                    listed[thread + i * threads] = T.uint64(0)
                            T.sync_threads()
                            T.call_extern("handle", f"di_sort_falling<{threads}>", T.address_of(listed[0]), size[0])
                            # Running mass along the sorted tokens, `block` of them at a time.
                            before[0] = found[1]
                            before[1] = found[2]
                            for i in T.serial(T.ceildiv(size[0], threads)):
                                part[0] = T.int64(0)
                                if T.cast(thread + i * threads, "int64") < many:
                                    part[0] = pure(
                                        "int64",
                                        "di_mass",
                                        pure(
                                            "float32",
                                            "di_relative",
                                            pure("float32", "di_value", listed[thread + i * threads]),
                                            peak,
                                            heat,
                                            cold,
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
                                    (T.cast(thread + i * threads, "int64") < many)
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
                        meet(parts)
                        cut[0] = of_part("uint64", last[0], 0, parts)
                        total[0] = T.cast(of_part("uint64", last[1], 0, parts), "int64")
                        if parts > 1:
                            meet(parts)
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
                                        e = pure("float32", "di_relative", values[v], peak, heat, cold)
                                        if e >= least:
                                            number[0] = number[0] + T.int64(1)
                                            part[0] = part[0] + pure("int64", "di_mass", e)
                            gather(number, before, counts, gross, thread, rank, warps, parts)
                            gather(part, before, sums, gross, thread, rank, warps, parts)
                            if bit < RANK_BITS:
                                if (part[0] > limit) or (number[0] >= room):
                                    cut[0] = trial
                            else:
                                total[0] = part[0]

            # 3. The draw.
            share = T.cast(total[0], "float32") / T.float32(2.0**44)
            inverse = pure("float32", "__frcp_rn", share)
            log_total = pure("float32", "logf", share)
            edge[0] = -T.infinity("float32")
            edge_id[0] = 0x3FFFF
            if cut[0] != T.uint64(0):
                edge[0] = pure("float32", "di_value", cut[0])
                edge_id[0] = pure("int32", "di_id", cut[0])
            if result == ALL:
                for i in T.serial(turns):
                    read(values, logits, row, first + i * chunk, width, vector)
                    for v in T.unroll(vector):
                        if (pure("float32", "di_relative", values[v], peak, heat, cold) >= least) and (
                            pure("bool", "di_stays", values[v], first + i * chunk + v, edge[0], edge_id[0])
                        ):
                            values[v] = pure("float32", "di_scaled", values[v], peak, heat, cold) - log_total
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
                            pure("float32", "di_scaled", values[v], peak, heat, cold) - log_total,
                            keys[row],
                            first + i * chunk + v,
                        )
                        if (
                            pure("bool", "di_stays", values[v], first + i * chunk + v, edge[0], edge_id[0])
                            and (pure("float32", "di_relative", values[v], peak, heat, cold) >= least)
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
                    last[0] = swapped[0]
                    last[1] = swapped[1]
                if parts > 1:
                    meet(parts)
                if rank == 0 and thread == 0:
                    for p in T.serial(1, parts):
                        best[0] = of_part("uint64", last[0], p, parts)
                        best[1] = of_part("uint64", last[1], p, parts)
                        if (best[0] > swapped[0]) or ((best[0] == swapped[0]) and (best[1] > swapped[1])):
                            swapped[0] = best[0]
                            swapped[1] = best[1]
                    token = 0x3FFFF - T.cast(swapped[1], "int32")
                    tokens[row] = T.cast(token, "int64")
                    logprobs[row] = pure("float32", "di_scaled", logits[row, token], peak, heat, cold) - log_total
                if parts > 1:
                    meet(parts)  # a block's memory is there as long as the block
            else:
                total[0] = T.int64(0)
                for i in T.unroll(turns, unroll_factor=2048 // threads):
                    read(values, logits, row, first + i * chunk, width, vector)
                    light[0] = T.uint32(0)
                    for v in T.unroll(vector):
                        weigh(
                            own,
                            v,
                            values,
                            first + i * chunk + v,
                            peak,
                            heat,
                            cold,
                            least,
                            edge,
                            edge_id,
                            share,
                            inverse,
                        )
                        light[0] = light[0] + own[v]
                    light[0] = T.call_extern("uint32", "di_warp_sum32", light[0])
                    total[0] = total[0] + T.cast(light[0], "int64")
                    if lane == 0:
                        steps[warp * turns + i] = light[0]
                part[0] = T.if_then_else(lane == 0, total[0], T.int64(0))
                gather(part, before, sums, gross, thread, rank, warps, parts)
                target = pure("int64", "di_target", keys[row], part[0])
                before[1] = before[0]  # weight of the stretches before this warp's
                for w in T.serial(warps):
                    if w < warp:
                        before[1] = before[1] + sums[w]
                if (before[1] <= target) and (target < before[1] + sums[warp]):
                    # The turn that the number falls into, one above in the upper bits, and the weight before it.
                    swapped[0] = T.uint64(0)
                    for i in T.serial(-(-turns // WARP)):
                        part[0] = T.int64(0)
                        if i * WARP + lane < turns:
                            part[0] = T.cast(steps[warp * turns + i * WARP + lane], "int64")
                        number[0] = T.call_extern("int64", "di_warp_scan", part[0])
                        if (before[1] + number[0] - part[0] <= target) and (target < before[1] + number[0]):
                            swapped[0] = (T.cast(i * WARP + lane + 1, "uint64") << T.uint64(33)) | T.cast(
                                before[1] + number[0] - part[0], "uint64"
                            )
                        before[1] = before[1] + T.shfl_sync(number[0], WARP - 1)
                    swapped[0] = T.call_extern("uint64", "di_warp_max", swapped[0])
                    size[0] = (T.cast(swapped[0] >> T.uint64(33), "int32") - 1) * chunk + first
                    before[1] = T.cast(swapped[0] & T.uint64((1 << 33) - 1), "int64")
                    read(values, logits, row, size[0], width, vector)
                    light[0] = T.uint32(0)
                    for v in T.unroll(vector):
                        weigh(own, v, values, size[0] + v, peak, heat, cold, least, edge, edge_id, share, inverse)
                        light[0] = light[0] + own[v]
                    number[0] = T.call_extern("int64", "di_warp_scan", T.cast(light[0], "int64"))
                    part[0] = before[1] + number[0] - T.cast(light[0], "int64")
                    for v in T.unroll(vector):  # of all lanes and values, one holds the number
                        if (part[0] <= target) and (target < part[0] + T.cast(own[v], "int64")):
                            tokens[row] = T.cast(size[0] + v, "int64")
                            logprobs[row] = pure("float32", "di_scaled", values[v], peak, heat, cold) - log_total
                        part[0] = part[0] + T.cast(own[v], "int64")

    return choose
