"""Temperature, min-p, top-p, top-k and log-softmax (``sample.logprobs``; ``spec/sampling.md`` 2.2, 2.3).

Nothing is sorted. The lowest value that stays is found digit by digit, four at a time, from the number and the mass of
the tokens above each trial value: what the chip's own sampler does. Masses are integers, so that their sums do not
depend on an order, and among tokens of the lowest value the lower ids stay.
"""

import tilelang.ascend.language as T

from deepinfer_ascend.chip import VECTOR_CORES
from deepinfer_ascend.jit.registry import kernel
from deepinfer_ascend.tl.numbers import is_nan, rank_of
from deepinfer_ascend.tl.reductions import add_up

GREEDY_BELOW = 1e-5
ONE = 2.0**40
"""Mass of the most probable token."""
LOW_WORD = 0xFFFFFFFF
DIGITS, ID_DIGITS = 16, 9
"""Of two bits: of a value, and of a token."""


@kernel
def logprob_rows(*, width: int, threads: int = 256):
    """``logits`` fp32 ``[rows, width]`` -> log-probabilities of what stays, -inf elsewhere, in ``out``.

    Each row has ``temperature``, ``min_p`` (0: off), ``top_p`` fp32 and ``top_k`` int32 (below 1: off). A row with NaN,
    with +inf, or without any finite value, is NaN.
    """
    rows, turns = T.dynamic("rows"), -(-width // threads)

    @T.macro
    def read(value, share, logits, row, token, inverse, peak, least):
        """``value[0]``: the scaled logit. ``share[0]``: what it has of the best one's probability, -1 if it is out."""
        value[0] = logits[row, token[0]] * inverse[0]
        share[0] = T.exp(value[0] - peak[0])
        if value[0] == -T.infinity(T.float32) or share[0] < least[0]:
            share[0] = T.float32(-1)

    @T.prim_func
    def logprob_rows(
        logits: T.Tensor((rows, width), T.float32),
        temperature: T.Tensor((rows,), T.float32),
        min_p: T.Tensor((rows,), T.float32),
        top_p: T.Tensor((rows,), T.float32),
        top_k: T.Tensor((rows,), T.int32),
        out: T.Tensor((rows, width), T.float32),
    ):
        with T.Kernel(VECTOR_CORES) as core, T.SimtVF(threads=threads):
            lane = T.get_thread_binding()
            part = T.alloc_shared((6 * threads,), T.int64)
            tops = T.alloc_shared((threads,), T.float32)
            found = T.alloc_shared((2,), T.int64)  # lowest value that stays, and where its ids end
            value = T.alloc_local((1,), T.float32)
            share = T.alloc_local((1,), T.float32)
            peak = T.alloc_local((1,), T.float32)
            sound = T.alloc_local((1,), T.int32)
            sums = T.alloc_local((6,), T.int64)
            mass = T.alloc_local((1,), T.int64)
            many = T.alloc_local((1,), T.int64)
            cut = T.alloc_local((2,), T.int64)
            # What is needed more than once: the passes expand what is no variable.
            inverse = T.alloc_local((1,), T.float32)
            least = T.alloc_local((1,), T.float32)
            room = T.alloc_local((1,), T.int64)
            token = T.alloc_local((1,), T.int32)
            rank = T.alloc_local((1,), T.int64)
            weight = T.alloc_local((1,), T.int64)
            one = T.alloc_local((1,), T.int64)
            rate = T.alloc_local((1,), T.int64)
            limit = T.alloc_local((1,), T.int64)
            each = T.alloc_local((1,), T.int64)
            ahead = T.alloc_local((1,), T.int64)
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < rows:
                    greedy = temperature[row] < T.float32(GREEDY_BELOW)
                    inverse[0] = T.if_then_else(greedy, T.float32(1), T.float32(1) / temperature[row])
                    least[0] = min_p[row]
                    room[0] = T.if_then_else(top_k[row] > 0, T.cast(top_k[row], T.int64), T.int64(width))
                    if greedy:
                        room[0] = T.int64(1)
                    ordered = top_p[row] < T.float32(1) or room[0] < T.int64(width)

                    peak[0] = -T.infinity(T.float32)
                    sound[0] = 1
                    for i in T.serial(turns):
                        token[0] = i * threads + lane
                        if token[0] < width:
                            value[0] = logits[row, token[0]] * inverse[0]
                            if is_nan(value[0]):
                                sound[0] = 0
                            peak[0] = T.max(peak[0], value[0])
                    tops[lane] = T.if_then_else(sound[0] == 1, peak[0], T.infinity(T.float32))
                    T.sync_threads()
                    peak[0] = tops[0]
                    for i in T.serial(threads):
                        peak[0] = T.max(peak[0], tops[i])
                    if peak[0] == T.infinity(T.float32) or peak[0] == -T.infinity(T.float32):
                        for i in T.serial(turns):
                            if i * threads + lane < width:
                                out[row, i * threads + lane] = T.float32(float("nan"))
                        T.sync_threads()
                    else:
                        sums[0] = T.int64(0)
                        for i in T.serial(turns):
                            token[0] = i * threads + lane
                            if token[0] < width:
                                read(value, share, logits, row, token, inverse, peak, least)
                                if share[0] >= T.float32(0):
                                    sums[0] = sums[0] + T.cast(share[0] * T.float32(ONE), T.int64)
                        add_up(part, sums, lane, threads, 1)
                        mass[0] = part[0]
                        cut[0] = T.int64(0)
                        cut[1] = T.int64(width)
                        T.sync_threads()
                        if ordered:
                            # floor(mass * top_p), by halves: the product does not fit into 64 bits.
                            rate[0] = T.cast(
                                T.max(T.min(top_p[row], T.float32(1)), T.float32(0)) * T.float32(2.0**31), T.int64
                            )
                            limit[0] = (((mass[0] >> T.int64(32)) * rate[0]) << T.int64(1)) + (
                                ((mass[0] & T.int64(LOW_WORD)) * rate[0]) >> T.int64(31)
                            )
                            for digit in T.serial(DIGITS):
                                one[0] = T.int64(1) << T.cast(2 * (DIGITS - 1 - digit), T.int64)
                                for j in T.serial(6):
                                    sums[j] = T.int64(0)
                                for i in T.serial(turns):
                                    token[0] = i * threads + lane
                                    if token[0] < width:
                                        read(value, share, logits, row, token, inverse, peak, least)
                                        if share[0] >= T.float32(0):
                                            rank[0] = rank_of(value[0]) - cut[0]
                                            weight[0] = T.cast(share[0] * T.float32(ONE), T.int64)
                                            for j in T.serial(3):
                                                if rank[0] >= T.cast(j + 1, T.int64) * one[0]:
                                                    sums[j] = sums[j] + weight[0]
                                                    sums[3 + j] = sums[3 + j] + T.int64(1)
                                add_up(part, sums, lane, threads, 6)
                                many[0] = T.int64(0)
                                for j in T.serial(3):
                                    if part[j * threads] > limit[0] or part[(3 + j) * threads] >= room[0]:
                                        many[0] = T.cast(j + 1, T.int64)
                                cut[0] = cut[0] + many[0] * one[0]
                                T.sync_threads()
                            # Above the lowest value: mass and number; of it: number and mass.
                            for j in T.serial(4):
                                sums[j] = T.int64(0)
                            for i in T.serial(turns):
                                token[0] = i * threads + lane
                                if token[0] < width:
                                    read(value, share, logits, row, token, inverse, peak, least)
                                    if share[0] >= T.float32(0):
                                        rank[0] = rank_of(value[0]) - cut[0]
                                        weight[0] = T.cast(share[0] * T.float32(ONE), T.int64)
                                        if rank[0] > T.int64(0):
                                            sums[0] = sums[0] + weight[0]
                                            sums[1] = sums[1] + T.int64(1)
                                        elif rank[0] == T.int64(0):
                                            sums[2] = sums[2] + T.int64(1)
                                            sums[3] = sums[3] + weight[0]
                            add_up(part, sums, lane, threads, 4)
                            many[0] = part[2 * threads]
                            if many[0] > T.int64(0):
                                each[0] = part[3 * threads] // part[2 * threads]
                                many[0] = T.min(many[0], room[0] - part[threads])
                                if each[0] > T.int64(0):
                                    many[0] = T.min(many[0], (limit[0] - part[0]) // each[0] + T.int64(1))
                                mass[0] = part[0] + many[0] * each[0]
                            else:
                                mass[0] = part[0]
                            whole = many[0] == part[2 * threads]
                            if lane == 0:
                                found[0] = T.if_then_else(whole, T.int64(1), T.int64(0))
                            T.sync_threads()
                            if found[0] == T.int64(0):
                                cut[1] = T.int64(0)
                                for digit in T.serial(ID_DIGITS):
                                    one[0] = T.int64(1) << T.cast(2 * (ID_DIGITS - 1 - digit), T.int64)
                                    for j in T.serial(3):
                                        sums[j] = T.int64(0)
                                    for i in T.serial(turns):
                                        token[0] = i * threads + lane
                                        if token[0] < width:
                                            read(value, share, logits, row, token, inverse, peak, least)
                                            rank[0] = rank_of(value[0])
                                            ahead[0] = T.cast(token[0], T.int64) - cut[1]
                                            if share[0] >= T.float32(0) and rank[0] == cut[0]:
                                                for j in T.serial(3):
                                                    if ahead[0] < T.cast(j + 1, T.int64) * one[0]:
                                                        sums[j] = sums[j] + T.int64(1)
                                    add_up(part, sums, lane, threads, 3)
                                    limit_id = T.alloc_local((1,), T.int64)
                                    limit_id[0] = T.int64(0)
                                    for j in T.serial(3):
                                        if part[j * threads] <= many[0]:
                                            limit_id[0] = T.cast(j + 1, T.int64)
                                    cut[1] = cut[1] + limit_id[0] * one[0]
                                    T.sync_threads()
                        log_mass = T.log(T.cast(mass[0], T.float32) * T.float32(1 / ONE))
                        for i in T.serial(turns):
                            token[0] = i * threads + lane
                            if token[0] < width:
                                read(value, share, logits, row, token, inverse, peak, least)
                                rank[0] = rank_of(value[0])
                                stays = rank[0] > cut[0] or (rank[0] == cut[0] and T.cast(token[0], T.int64) < cut[1])
                                if share[0] >= T.float32(0) and stays:
                                    out[row, token[0]] = value[0] - peak[0] - log_mass
                                else:
                                    out[row, token[0]] = -T.infinity(T.float32)
                        T.sync_threads()

    return logprob_rows
