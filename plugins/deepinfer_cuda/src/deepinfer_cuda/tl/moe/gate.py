"""The gate: router logits in fp32, then the best ``k`` experts of score + bias and their weights.

The inner dimension is cut into a fixed number of segments whatever the number of tokens, and these into halves. With
few tokens each segment has blocks of its own, with many a block adds the segments of a half one after the other; the
sums are the same, so the bits of a token do not depend on its batch.
"""

from typing import Any

import tilelang.language as T

from deepinfer_cuda.jit import kernel
from deepinfer_cuda.tl.parts.numbers import NUMBERS

STEP = 64
"""Inner values of one pipeline step."""
MAX_SEGMENTS = 16


def segments(width: int) -> int:
    """Into how many equal segments the inner dimension is cut."""
    steps = -(-width // STEP)
    return next(n for n in range(min(MAX_SEGMENTS, steps), 0, -1) if steps % n == 0)


def halves(width: int) -> int:
    """Into how many runs of segments: 2, or 1 where their number is odd."""
    return 2 - segments(width) % 2


@kernel(
    cases=[
        {"width": 5120, "experts": 384, "split": True, "tokens_tile": 16},
        {"width": 5120, "experts": 384, "split": True, "tokens_tile": 64},
        {"width": 5120, "experts": 384, "split": False, "tokens_tile": 96},
        {"width": 5120, "experts": 384, "split": False, "tokens_tile": 192},
        {"width": 256, "experts": 8, "split": True, "tokens_tile": 16},
        {"width": 256, "experts": 8, "split": True, "tokens_tile": 64},
    ]
)
def gate_logits(*, width: int, experts: int, split: bool, tokens_tile: int) -> Any:
    """``out[s, t, e]``: segment s of ``x[t] . w[e]`` (``split``), or half s, the sum of its segments."""
    parts = segments(width)
    steps = -(-width // STEP) // parts
    tokens = T.dynamic("tokens")
    outputs = parts if split else halves(width)
    own = parts // outputs
    block = 64 if split else 128

    @T.prim_func
    def gate_logits(
        x: T.Tensor((tokens, width), "bfloat16"),
        w: T.Tensor((experts, width), "bfloat16"),
        out: T.Tensor((outputs, tokens, experts), "float32"),
    ):
        with T.Kernel(T.ceildiv(tokens, tokens_tile), T.ceildiv(experts, block), outputs, threads=2 * block) as (
            bt,
            be,
            bs,
        ):
            ws = T.alloc_shared((block, STEP), "bfloat16")
            xs = T.alloc_shared((tokens_tile, STEP), "bfloat16")
            part = T.alloc_fragment((block, tokens_tile), "float32")
            total = T.alloc_fragment((block, tokens_tile), "float32")
            T.clear(total)
            T.clear(part)
            for k in T.Pipelined(own * steps, num_stages=4):
                at = (bs * own * steps + k) * STEP
                T.copy(w[be * block : (be + 1) * block, at : at + STEP], ws)
                T.copy(x[bt * tokens_tile : (bt + 1) * tokens_tile, at : at + STEP], xs)
                T.gemm(ws, xs, part, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                if k % steps == steps - 1:
                    for e, t in T.Parallel(block, tokens_tile):
                        total[e, t] += part[e, t]
                    T.clear(part)
            for e, t in T.Parallel(block, tokens_tile):
                if (be * block + e < experts) & (bt * tokens_tile + t < tokens):
                    out[bs, bt * tokens_tile + t, be * block + e] = total[e, t]

    return gate_logits


@kernel(
    cases=[
        {"experts": 384, "choices": 6, "parts": 16, "runs": 2, "image": False, "masked": False},
        {"experts": 384, "choices": 6, "parts": 2, "runs": 2, "image": False, "masked": False},
        *(
            {"experts": experts, "choices": choices, "parts": 1, "runs": 1, "image": False, "masked": masked}
            for experts, choices in ((384, 6), (8, 2))
            for masked in (False, True)
        ),
        {"experts": 384, "choices": 6, "parts": 16, "runs": 2, "image": False, "masked": True},
        {"experts": 8, "choices": 2, "parts": 4, "runs": 2, "image": False, "masked": False},
        {"experts": 8, "choices": 2, "parts": 4, "runs": 2, "image": False, "masked": True},
    ]
)
def gate_choose(*, experts: int, choices: int, parts: int, runs: int, image: bool, masked: bool) -> Any:
    """Sum ``runs`` runs of segments, score, choose and weigh; a warp a token, an expert id every 32 in a lane.

    A key orders scores as unsigned words; of equal keys the lower id wins, also across lanes.
    """
    tokens = T.dynamic("tokens")
    warps = 4
    held = -(-experts // 32)

    @T.prim_func
    def gate_choose(
        logits: T.Tensor((parts, tokens, experts), "float32"),
        bias: T.Tensor((experts,), "float32"),
        bias_image: T.Tensor((experts,), "float32"),
        image_rows: T.Tensor((tokens,), "bool"),
        mask: T.Tensor((tokens,), "bool"),
        temperature: T.float32,
        scale: T.float32,
        ids: T.Tensor((tokens, choices), "int64"),
        weights: T.Tensor((tokens, choices), "float32"),
    ):
        with T.Kernel(T.ceildiv(tokens, warps), threads=32 * warps, prelude=NUMBERS + _TEXT) as block:
            T.annotate_min_blocks_per_sm(8)  # 4,096 tokens are 1,024 blocks: all run at once
            tx = T.get_thread_binding()
            lane = tx % 32
            token = block * warps + tx // 32
            score = T.alloc_local((held,), "float32")
            key = T.alloc_local((held,), "uint32")
            chosen = T.alloc_local((choices,), "float32")
            chosen_id = T.alloc_local((choices,), "int32")
            best = T.alloc_var("uint32", init=0)
            best_id = T.alloc_var("int32", init=0)
            best_score = T.alloc_var("float32", init=0.0)
            total = T.alloc_var("float32", init=0.0)
            if token < tokens:
                for i in T.unroll(held):
                    expert = i * 32 + lane
                    key[i] = T.uint32(0)
                    score[i] = 0.0
                    if expert < experts:
                        z = T.alloc_var("float32", init=0.0)
                        for r in T.unroll(runs):
                            half = T.alloc_var("float32", init=0.0)
                            for s in T.unroll(parts // runs):
                                half += logits[r * (parts // runs) + s, token, expert]
                            z += half
                        score[i] = T.call_pure_extern("float32", "di_sqrt_softplus", z, temperature)
                        offset = T.alloc_var("float32", init=0.0)
                        offset = bias[expert]
                        if image:  # noqa: SIM102 (decided here, not on the device)
                            if image_rows[token]:
                                offset = bias_image[expert]
                        key[i] = T.call_pure_extern("uint32", "di_order", score[i] + offset)
                for c in T.unroll(choices):
                    best = T.uint32(0)
                    for i in T.unroll(held):
                        best = T.max(best, key[i])
                    best = T.call_pure_extern("uint32", "di_warp_max", best)
                    best_id = 0x7FFFFFFF
                    for i in T.unroll(held):
                        if key[held - 1 - i] == best:
                            best_id = (held - 1 - i) * 32 + lane
                    best_id = T.call_pure_extern("int32", "di_warp_min", best_id)
                    for i in T.unroll(held):
                        if i * 32 + lane == best_id:
                            key[i] = T.uint32(0)
                            best_score = score[i]
                    chosen[c] = T.call_pure_extern("float32", "di_of_lane", best_score, best_id % 32)
                    chosen_id[c] = best_id
                total = 0.0
                for c in T.unroll(choices):
                    total += chosen[c]
                if lane == 0:
                    for c in T.unroll(choices):
                        weights[token, c] = chosen[c] / (total + 1e-20) * scale
                        ids[token, c] = T.cast(chosen_id[c], "int64")
                        if masked:  # noqa: SIM102
                            if not mask[token]:
                                weights[token, c] = 0.0
                                ids[token, c] = T.int64(-1)

    return gate_choose


_TEXT = r"""
// sqrt(softplus(z / temperature)), softplus(z) = z above 20.
DI_FN float di_sqrt_softplus(float z, float temperature) {
  z = temperature == 1.0f ? z : __fdiv_rn(z, temperature);
  return sqrtf(z > 20.0f ? z : log1pf(expf(z)));
}
// Of all lanes: the largest word, the smallest number, what one of them holds.
DI_FN uint32_t di_warp_max(uint32_t x) { return __reduce_max_sync(0xffffffffu, x); }
DI_FN int di_warp_min(int x) { return __reduce_min_sync(0xffffffffu, x); }
DI_FN float di_of_lane(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
// Larger fp32 <-> larger word, at least 1; NaN above all.
DI_FN uint32_t di_order(float x) {
  if (x != x) return 0xffffffffu;
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return max(bits & 0x80000000u ? ~bits : bits | 0x80000000u, 1u);
}
"""
