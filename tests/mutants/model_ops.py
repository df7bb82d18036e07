"""Faults of the ops ``moe.*``, ``mhc.*`` and ``engram.*``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import evolve
from mutant import Mutant
from torch import Tensor

from deepinfer_cpu.ops import engram, mhc, moe, quant

Op = Callable[..., Any]


def gate_forgets_the_bias(op: Op) -> Op:
    return lambda x, w, bias, **options: op(x, w, torch.zeros_like(bias), **options)


def gate_weighs_by_the_biased_score(op: Op) -> Op:
    def gate(x: Tensor, w: Any, bias: Tensor, *, k: int, scale: float, **options: Any) -> Any:
        idx, _ = op(x, w, bias, k=k, scale=scale, **options)
        biased = moe.sqrt_softplus(x.float() @ w.matrix / options.get("temperature", 1.0)) + bias
        chosen = biased.gather(1, idx.clamp(min=0))
        return idx, chosen / (chosen.sum(1, keepdim=True) + 1e-20) * scale

    return gate


def gate_prefers_the_larger_id(op: Op) -> Op:
    def gate(x: Tensor, w: Any, bias: Tensor, **options: Any) -> Any:
        mirrored = evolve(w, matrix=w.matrix.flip(1).contiguous())
        idx, weight = op(x, mirrored, bias.flip(0).contiguous(), **options)
        return torch.where(idx < 0, idx, len(bias) - 1 - idx), weight

    return gate


def gate_multiplies_by_the_temperature(op: Op) -> Op:
    return lambda x, w, bias, *, temperature=1.0, **options: op(x, w, bias, temperature=1 / temperature, **options)


def gate_leaves_weights_of_masked_rows(op: Op) -> Op:
    def gate(x: Tensor, w: Any, bias: Tensor, *, mask: Tensor | None = None, **options: Any) -> Any:
        idx, weight = op(x, w, bias, **options)
        return (idx if mask is None else idx.masked_fill(~mask.unsqueeze(1), -1)), weight

    return gate


def gate_normalises_by_a_softmax(op: Op) -> Op:
    def gate(x: Tensor, w: Any, bias: Tensor, *, k: int, scale: float, **options: Any) -> Any:
        idx, weight = op(x, w, bias, k=k, scale=scale, **options)
        return idx, torch.where(idx < 0, 0.0, weight.softmax(1) * scale)

    return gate


def gate_gives_image_rows_the_text_bias(op: Op) -> Op:
    def gate(x: Tensor, w: Any, bias: Tensor, *, bias_image: Any = None, image_rows: Any = None, **options: Any) -> Any:
        return op(x, w, bias, **options)

    return gate


def dispatch_pairs_weights_with_the_next_row(op: Op) -> Op:
    def dispatch(x: Any, idx: Tensor, weight: Tensor, **options: Any) -> Any:
        d = op(x, idx, weight, **options)
        return evolve(d, weight=d.weight.roll(1))

    return dispatch


def dispatch_sends_the_first_choice_only(op: Op) -> Op:
    def dispatch(x: Any, idx: Tensor, weight: Tensor, **options: Any) -> Any:
        return op(x, torch.where(torch.arange(idx.shape[1]) > 0, -1, idx), weight, **options)

    return dispatch


def experts_do_not_clamp(op: Op) -> Op:
    return lambda d, w1, w2, *, clamp, **options: op(d, w1, w2, clamp=0.0, **options)


def experts_forget_the_routing_weight(op: Op) -> Op:
    return lambda d, w1, w2, **options: op(evolve(d, weight=torch.ones_like(d.weight)), w1, w2, **options)


def experts_swap_gate_and_up(op: Op) -> Op:
    def experts(d: Any, w1: Any, w2: Any, **options: Any) -> Tensor:
        half = w1.matrix.shape[2] // 2
        return op(d, evolve(w1, matrix=w1.matrix.roll(half, 2).contiguous()), w2, **options)

    return experts


def combine_adds_in_bf16(op: Op) -> Op:
    def combine(y: Tensor, handle: moe.Handle, *, bias: Tensor | None = None) -> Tensor:
        total = torch.zeros(handle.tokens, y.shape[1], dtype=torch.bfloat16)
        for t, rows in enumerate(handle.rows.tolist()):
            for row in rows:
                if row >= 0:
                    total[t] += y[row].bfloat16()
        return (total if bias is None else total + bias).to(handle.dtype)

    return combine


def combine_adds_in_descending_order(op: Op) -> Op:
    return lambda y, handle, *, bias=None: op(y, evolve(handle, rows=handle.rows.flip(1)), bias=bias)


def combine_adds_the_shared_expert_first(op: Op) -> Op:
    def combine(y: Tensor, handle: moe.Handle, *, bias: Tensor | None = None) -> Tensor:
        if bias is None or handle.masked:
            return op(y, handle, bias=bias)
        total = bias.float()
        for choice in range(handle.rows.shape[1]):
            total = total + y.float()[handle.rows[:, choice]]
        return total.to(handle.dtype)

    return combine


def swiglu_clamps_the_gate_from_below(op: Op) -> Op:
    def swiglu(x: Tensor, *, clamp: float, **options: Any) -> Any:
        g, u = x.chunk(2, -1)
        return op(torch.cat([g.clamp(min=-clamp) if clamp else g, u], dim=-1), clamp=clamp, **options)

    return swiglu


def swiglu_casts_without_rounding(op: Op) -> Op:
    def swiglu(x: Tensor, *, cast: Any = None, **options: Any) -> Any:
        if cast is None:
            return op(x, **options)
        fine = op(x, **{**options, "dtype": torch.float32})
        return quant.cast_per_token(fine, fmt=cast[0], group=cast[1], sf=cast[2])

    return swiglu


def swiglu_weighs_behind_the_rounding(op: Op) -> Op:
    def swiglu(x: Tensor, *, weight: Tensor | None = None, cast: Any = None, **options: Any) -> Any:
        y = op(x, **options)
        y = y if weight is None else (y.float() * weight.unsqueeze(1)).to(y.dtype)
        return y if cast is None else quant.cast_per_token(y, fmt=cast[0], group=cast[1], sf=cast[2])

    return swiglu


def swiglu_takes_gelu_for_silu(op: Op) -> Op:
    def swiglu(x: Tensor, *, clamp: float, **options: Any) -> Any:
        g, u = x.float().chunk(2, -1)
        if clamp:
            g, u = g.clamp(max=clamp), u.clamp(-clamp, clamp)
        return (torch.nn.functional.gelu(g, approximate="tanh") * u).to(x.dtype)

    return swiglu


def expand_shares_one_row(op: Op) -> Op:
    return lambda x, c: x.unsqueeze(1).expand(-1, c, -1)


def prepare_forgets_norm_eps(op: Op) -> Op:
    return lambda fn, scale, base, *, norm_eps=1e-20, **options: op(fn, scale, base, **options)


def prepare_swaps_the_scales_of_pre_and_post(op: Op) -> Op:
    return lambda fn, scale, base, **options: op(fn, scale[[1, 0, 2]], base, **options)


def pre_iterates_once_less(op: Op) -> Op:
    return lambda stream, a, params: op(stream, a, evolve(params, iters=max(params.iters - 1, 1)))


def pre_transposes_comb(op: Op) -> Op:
    def pre(stream: Tensor, a: Tensor, params: mhc.MixParams) -> Any:
        x, a_next, post, comb = op(stream, a, params)
        return x, a_next, post, comb.transpose(1, 2)

    return pre


def pre_collapses_with_the_new_coefficients(op: Op) -> Op:
    def pre(stream: Tensor, a: Tensor, params: mhc.MixParams) -> Any:
        _, a_next, post, comb = op(stream, a, params)
        return mhc.collapse(stream.float(), a_next, stream.dtype), a_next, post, comb

    return pre


def pre_leaves_eps_out_of_a(op: Op) -> Op:
    def pre(stream: Tensor, a: Tensor, params: mhc.MixParams) -> Any:
        x, a_next, post, comb = op(stream, a, params)
        return x, a_next - params.eps, post, comb

    return pre


def pre_ends_on_the_sum_over_destinations(op: Op) -> Op:
    def pre(stream: Tensor, a: Tensor, params: mhc.MixParams) -> Any:
        x, a_next, post, comb = op(stream, a, params)
        return x, a_next, post, comb / (comb.sum(2, keepdim=True) + params.eps)

    return pre


def post_transposes_comb(op: Op) -> Op:
    return lambda y, stream, post, comb: op(y, stream, post, comb.transpose(1, 2))


def post_rounds_the_mixed_streams(op: Op) -> Op:
    def post(y: Tensor, stream: Tensor, post: Tensor, comb: Tensor) -> Tensor:
        total = (post.unsqueeze(2) * y.unsqueeze(1)).to(stream.dtype)
        for i in range(stream.shape[1]):
            total = total + (comb[:, i].unsqueeze(2) * stream[:, i : i + 1]).to(stream.dtype)
        return total

    return post


def head_takes_the_mean(op: Op) -> Op:
    return lambda stream, a: op(stream, torch.full_like(a, 1 / a.shape[1]))


def hash_is_off_by_one_ngram(op: Op) -> Op:
    """The order-n hash of a window that begins a token earlier."""
    return lambda ids, multipliers, primes, offsets: op(ids.roll(1, 1), multipliers, primes, offsets)


def hash_adds_instead_of_xor(op: Op) -> Op:
    def hashed(ids: Tensor, multipliers: Tensor, primes: Tensor, offsets: Tensor) -> Tensor:
        orders = ids.shape[1] - 1
        sums = (ids.long() * multipliers).cumsum(1)[:, 1:].unsqueeze(2)
        heads = len(primes) // orders
        return (sums % primes.view(orders, heads) + offsets.view(orders, heads)).flatten(1)

    return hashed


def hash_multiplies_in_32_bits(op: Op) -> Op:
    return lambda ids, multipliers, primes, offsets: op(ids, multipliers & 0xFFFFFFFF, primes, offsets)


def fetch_takes_the_scales_of_the_row_before(op: Op) -> Op:
    def fetch(rows: Tensor, table: engram.Table, **options: Any) -> Tensor:
        return op(rows, table if table.scales is None else evolve(table, scales=table.scales.roll(1, 0)), **options)

    return fetch


def fetch_lays_columns_out_head_first(op: Op) -> Op:
    return lambda rows, table, **options: op(rows.flip(1), table, **options)


def table_shifts_its_scales(op: Op) -> Op:
    return lambda weight, scale=None: op(weight, scale if scale is None else scale - 1)


def gate_weight_is_a_sum(op: Op) -> Op:
    return lambda q_weight, k_weight, **options: op(q_weight + k_weight, torch.ones_like(k_weight), **options)


def _gate_with(root: Callable[[Tensor, int], Tensor]) -> Callable[[Op], Op]:
    def make(op: Op) -> Op:
        def gate(x: Tensor, kv: Tensor, params: engram.GateParams, *, mask: Tensor | None = None) -> Tensor:
            tokens, c, width = x.shape
            k, v = kv[:, : c * width].view(tokens, c, width).float(), kv[:, c * width :].float()
            rx, rk = (((t.float() ** 2).mean(2) + params.norm_eps).rsqrt() for t in (x, k))
            d = (x.float() * params.weight * k).sum(2) * rx * rk * width**-0.5
            g = root(d, width).sigmoid()
            if mask is not None:
                g = g * mask.unsqueeze(1)
            return (x.float() + g.unsqueeze(2) * v.unsqueeze(1)).to(x.dtype)

        return gate

    return make


def gate_ignores_the_mask(op: Op) -> Op:
    return lambda x, kv, params, *, mask=None: op(x, kv, params)


ENGRAM_GATES = {
    "gate_loses_the_sign": lambda d, width: d.abs().clamp(min=1e-6).sqrt(),
    "gate_has_no_floor": lambda d, width: torch.copysign(d.abs().sqrt(), d),
    "gate_has_no_root": lambda d, width: d,
    "gate_divides_by_no_width": lambda d, width: torch.copysign((d * width**0.5).abs().clamp(min=1e-6).sqrt(), d),
}


def _of(op: str, file: str, *faults: tuple[Callable[[Op], Op], str]) -> list[Mutant]:
    return [
        Mutant(name=make.__name__, op=op, make=make, caught_by=f"backend/{file}", test=test) for make, test in faults
    ]


MUTANTS = [
    *_of(
        "moe.gate",
        "test_moe_gate.py",
        (gate_forgets_the_bias, "biased_score"),
        (gate_weighs_by_the_biased_score, "large_biases"),
        (gate_prefers_the_larger_id, "equal_scores"),
        (gate_multiplies_by_the_temperature, "temperature"),
        (gate_leaves_weights_of_masked_rows, "masked"),
        (gate_normalises_by_a_softmax, "biased_score"),
        (gate_gives_image_rows_the_text_bias, "image"),
    ),
    *_of(
        "moe.dispatch",
        "test_moe.py",
        (dispatch_pairs_weights_with_the_next_row, "dispatch"),
        (dispatch_sends_the_first_choice_only, "dispatch"),
    ),
    *_of(
        "moe.experts",
        "test_moe.py",
        (experts_do_not_clamp, "clamp"),
        (experts_forget_the_routing_weight, "roundings_of_a_step"),
        (experts_swap_gate_and_up, "roundings_of_a_step"),
    ),
    *_of(
        "moe.combine",
        "test_moe.py",
        (combine_adds_in_bf16, "rounds_once"),
        (combine_adds_in_descending_order, "ascending"),
        (combine_adds_the_shared_expert_first, "ascending"),
    ),
    *_of(
        "moe.swiglu",
        "test_moe_swiglu.py",
        (swiglu_clamps_the_gate_from_below, "both_sides"),
        (swiglu_casts_without_rounding, "equals_fp64"),
        (swiglu_weighs_behind_the_rounding, "equals_fp64"),
        (swiglu_takes_gelu_for_silu, "equals_fp64"),
    ),
    *_of("mhc.expand", "test_mhc.py", (expand_shares_one_row, "expand")),
    *_of(
        "mhc.prepare",
        "test_mhc.py",
        (prepare_forgets_norm_eps, "prepared_with"),
        (prepare_swaps_the_scales_of_pre_and_post, "pre_equals"),
    ),
    *_of(
        "mhc.pre",
        "test_mhc.py",
        (pre_iterates_once_less, "iterations"),
        (pre_transposes_comb, "golden"),
        (pre_collapses_with_the_new_coefficients, "pre_equals"),
        (pre_leaves_eps_out_of_a, "prepared_with"),
        (pre_ends_on_the_sum_over_destinations, "iterations"),
    ),
    *_of(
        "mhc.post", "test_mhc.py", (post_transposes_comb, "post_equals"), (post_rounds_the_mixed_streams, "rounds_once")
    ),
    *_of("mhc.head", "test_mhc.py", (head_takes_the_mean, "head_equals")),
    *_of(
        "engram.hash",
        "test_engram.py",
        (hash_is_off_by_one_ngram, "golden_rows"),
        (hash_adds_instead_of_xor, "golden_rows"),
        (hash_multiplies_in_32_bits, "golden_rows"),
    ),
    *_of(
        "engram.fetch",
        "test_engram.py",
        (fetch_takes_the_scales_of_the_row_before, "fetch"),
        (fetch_lays_columns_out_head_first, "fetch"),
    ),
    *_of("engram.prepare", "test_engram.py", (table_shifts_its_scales, "fetch")),
    *_of("engram.prepare_gate", "test_engram.py", (gate_weight_is_a_sum, "gate_equals")),
    *_of("engram.gate", "test_engram.py", (gate_ignores_the_mask, "masked")),
    *[
        Mutant(name=name, op="engram.gate", make=_gate_with(root), caught_by="backend/test_engram.py", test="test_gate")
        for name, root in ENGRAM_GATES.items()
    ],
]
