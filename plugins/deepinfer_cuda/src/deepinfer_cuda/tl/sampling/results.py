"""What a launch of :mod:`choose` gives of the tokens that stay: all log-probabilities, the best after noise, a draw."""

import tilelang.language as T

from deepinfer_cuda.tl.sampling.block import read_turn, relative, scaled, stays, sum_up
from deepinfer_cuda.tl.sampling.parts import meet, of_part
from deepinfer_cuda.tl.sampling.rows import WARP, pure


@T.macro
def weigh(b, v, token, share, inverse) -> None:
    """``own[v]``: the weight of ``values[v]``, 0 for what does not stay."""
    e = relative(b, b.values[v])
    b.own[v] = T.uint32(0)
    if (e >= b.least) and stays(b, v, token):
        b.own[v] = pure("uint32", "di_weight", e, share, inverse)


@T.macro
def write_logprobs(b, log_total) -> None:
    """Log-probabilities of the whole row, -inf for what does not stay."""
    for i in T.serial(b.turns):
        read_turn(b, b.first + i * b.chunk)
        for v in T.unroll(b.vector):
            if (relative(b, b.values[v]) >= b.least) and (stays(b, v, b.first + i * b.chunk + v)):
                b.values[v] = scaled(b, b.values[v]) - log_total
            else:
                b.values[v] = -T.infinity("float32")
        if b.first + i * b.chunk < b.width:
            T.call_extern(
                "handle",
                f"di_store<{b.vector}>",
                T.address_of(b.logprobs[b.row, b.first + i * b.chunk]),
                T.address_of(b.values[0]),
            )


@T.macro
def take_noisiest(b, log_total) -> None:
    """The token whose log-probability is the highest after the noise of its row's key."""
    b.best[0] = T.uint64(0)
    b.best[1] = T.uint64(0)
    for i in T.serial(b.turns):
        read_turn(b, b.first + i * b.chunk)
        for v in T.unroll(b.vector):
            noisy = pure(
                "uint64",
                "di_noisy",
                scaled(b, b.values[v]) - log_total,
                b.keys[b.row],
                b.first + i * b.chunk + v,
            )
            if stays(b, v, b.first + i * b.chunk + v) and (relative(b, b.values[v]) >= b.least) and (noisy > b.best[0]):
                b.best[0] = noisy
                b.best[1] = T.cast(0x3FFFF - (b.first + i * b.chunk + v), "uint64")
    b.swapped[0] = T.call_extern("uint64", "di_warp_max", b.best[0])
    if b.best[0] != b.swapped[0]:
        b.best[1] = T.uint64(0)
    b.swapped[1] = T.call_extern("uint64", "di_warp_max", b.best[1])
    T.sync_threads()
    if b.lane == 0:
        b.listed[b.warp] = b.swapped[0]
        b.listed[b.warps + b.warp] = b.swapped[1]
    T.sync_threads()
    if b.thread == 0:
        for w in T.serial(1, b.warps):
            if (b.listed[w] > b.swapped[0]) or (
                (b.listed[w] == b.swapped[0]) and (b.listed[b.warps + w] > b.swapped[1])
            ):
                b.swapped[0] = b.listed[w]
                b.swapped[1] = b.listed[b.warps + w]
        b.last[0] = b.swapped[0]
        b.last[1] = b.swapped[1]
    if b.parts > 1:
        meet(b.parts)
    if b.rank == 0 and b.thread == 0:
        for p in T.serial(1, b.parts):
            b.best[0] = of_part("uint64", b.last[0], p, b.parts)
            b.best[1] = of_part("uint64", b.last[1], p, b.parts)
            if (b.best[0] > b.swapped[0]) or ((b.best[0] == b.swapped[0]) and (b.best[1] > b.swapped[1])):
                b.swapped[0] = b.best[0]
                b.swapped[1] = b.best[1]
        token = 0x3FFFF - T.cast(b.swapped[1], "int32")
        b.tokens[b.row] = T.cast(token, "int64")
        b.logprobs[b.row] = pure("float32", "di_scaled", b.logits[b.row, token], b.peak, b.heat, b.cold) - log_total
    if b.parts > 1:
        meet(b.parts)  # a block's memory is there as long as the block


@T.macro
def draw_token(b, share, inverse, log_total) -> None:
    """The token that the row's key falls on among the weights, and its log-probability."""
    b.total[0] = T.int64(0)
    for i in T.unroll(b.turns, unroll_factor=2048 // b.threads):
        read_turn(b, b.first + i * b.chunk)
        b.light[0] = T.uint32(0)
        for v in T.unroll(b.vector):
            weigh(b, v, b.first + i * b.chunk + v, share, inverse)
            b.light[0] = b.light[0] + b.own[v]
        b.light[0] = T.call_extern("uint32", "di_warp_sum32", b.light[0])
        b.total[0] = b.total[0] + T.cast(b.light[0], "int64")
        if b.lane == 0:
            b.steps[b.warp * b.turns + i] = b.light[0]
    b.part[0] = T.if_then_else(b.lane == 0, b.total[0], T.int64(0))
    sum_up(b, b.part, b.sums)
    target = pure("int64", "di_target", b.keys[b.row], b.part[0])
    b.before[1] = b.before[0]  # weight of the stretches before this warp's
    for w in T.serial(b.warps):
        if w < b.warp:
            b.before[1] = b.before[1] + b.sums[w]
    if (b.before[1] <= target) and (target < b.before[1] + b.sums[b.warp]):
        # The turn that the number falls into, one above in the upper bits, and the weight before it.
        b.swapped[0] = T.uint64(0)
        for i in T.serial(-(-b.turns // WARP)):
            b.part[0] = T.int64(0)
            if i * WARP + b.lane < b.turns:
                b.part[0] = T.cast(b.steps[b.warp * b.turns + i * WARP + b.lane], "int64")
            b.number[0] = T.call_extern("int64", "di_warp_scan", b.part[0])
            if (b.before[1] + b.number[0] - b.part[0] <= target) and (target < b.before[1] + b.number[0]):
                b.swapped[0] = (T.cast(i * WARP + b.lane + 1, "uint64") << T.uint64(33)) | T.cast(
                    b.before[1] + b.number[0] - b.part[0], "uint64"
                )
            b.before[1] = b.before[1] + T.shfl_sync(b.number[0], WARP - 1)
        b.swapped[0] = T.call_extern("uint64", "di_warp_max", b.swapped[0])
        b.size[0] = (T.cast(b.swapped[0] >> T.uint64(33), "int32") - 1) * b.chunk + b.first
        b.before[1] = T.cast(b.swapped[0] & T.uint64((1 << 33) - 1), "int64")
        read_turn(b, b.size[0])
        b.light[0] = T.uint32(0)
        for v in T.unroll(b.vector):
            weigh(b, v, b.size[0] + v, share, inverse)
            b.light[0] = b.light[0] + b.own[v]
        b.number[0] = T.call_extern("int64", "di_warp_scan", T.cast(b.light[0], "int64"))
        b.part[0] = b.before[1] + b.number[0] - T.cast(b.light[0], "int64")
        for v in T.unroll(b.vector):  # of all lanes and values, one holds the number
            if (b.part[0] <= target) and (target < b.part[0] + T.cast(b.own[v], "int64")):
                b.tokens[b.row] = T.cast(b.size[0] + v, "int64")
                b.logprobs[b.row] = scaled(b, b.values[v]) - log_total
            b.part[0] = b.part[0] + T.cast(b.own[v], "int64")
