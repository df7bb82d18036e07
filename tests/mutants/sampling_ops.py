"""Faults of masks, filters, draws and verification."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import torch
from mutant import Mutant

Op = Callable[..., Any]


def _bits_from_the_other_end(op: Op) -> Op:
    def run(logits: Any, bitmask: Any, *args: Any) -> Any:
        bits = (bitmask.unsqueeze(2).long() >> torch.arange(32)) & 1
        turned = (bits.flip(2) << torch.arange(32)).sum(2)
        return op(logits, turned.to(torch.int32), *args)

    return run


def _words_from_the_other_end(op: Op) -> Op:
    return lambda logits, bitmask, *args: op(logits, bitmask.flip(1).contiguous(), *args)


def _step_past_the_rows(op: Op) -> Op:
    """A step beyond a request's rows masks the row behind them."""

    def run(logits: Any, bitmask: Any, reqs: Any, first_row: Any, step: int) -> Any:
        rows = (first_row[reqs.long()] + step).clamp(max=len(logits) - 1)
        each = torch.stack([rows, rows + 1], 1).flatten()
        return op(logits, bitmask, torch.arange(len(rows)).int() * 2, torch.cat([each, each[-1:]]).int(), 0)

    return run


def _mask_line_of_the_request(op: Op) -> Op:
    """Line r of the mask is taken for request r."""

    def run(logits: Any, bitmask: Any, reqs: Any, *args: Any) -> Any:
        order = reqs.long().argsort().argsort() if len(reqs) else reqs.long()
        return op(logits, bitmask[order], reqs, *args)

    return run


def _with(**changed: Callable[[Any, Any], Any]) -> Callable[[Op], Op]:
    """``sample.logprobs`` or ``sample.verify`` with other parameters: name -> function of (value, all parameters)."""

    def make(op: Op) -> Op:
        def run(logits: Any, params: Any, *args: Any, **kw: Any) -> Any:
            other = copy.copy(params)
            for name, change in changed.items():
                setattr(other, name, change(getattr(params, name), params))
            return op(logits, other, *args, **kw)

        return run

    return make


def _top_k_before_top_p(op: Op) -> Op:
    def run(logits: Any, params: Any) -> Any:
        first = copy.copy(params)
        first.top_p, first.min_p = torch.ones_like(params.top_p), None
        kept = op(logits, first) > float("-inf")
        rest = copy.copy(params)
        rest.top_k = torch.full_like(params.top_k, -1)
        return op(logits.masked_fill(~kept, float("-inf")), rest)

    return run


def _crossing_token_dropped(op: Op) -> Op:
    """Tokens count while the mass *with* them is at most top-p."""

    def run(logits: Any, params: Any) -> Any:
        out = op(logits, params)
        p = out.exp()
        order = p.sort(dim=1, descending=True, stable=True).indices
        last = order.gather(1, ((p > 0).sum(1, keepdim=True) - 1).clamp(min=0))
        many = ((p > 0).sum(1, keepdim=True) > 1) & (params.top_p < 1).unsqueeze(1)
        cut = out.scatter(1, last, float("-inf"))
        return torch.where(many, torch.log_softmax(cut, 1), out)

    return run


def _ties_to_the_higher_id(op: Op) -> Op:
    return lambda logits, params: op(logits.flip(1), params).flip(1)


def _not_renormalised(op: Op) -> Op:
    def run(logits: Any, params: Any) -> Any:
        out = op(logits, params)
        inverse = 1 / torch.where(params.temperature < 1e-5, 1.0, params.temperature)
        whole = torch.log_softmax(logits * inverse.unsqueeze(1), 1)
        return torch.where(out > float("-inf"), whole, out)

    return run


def _draws(**changed: Callable[[Any], Any]) -> Callable[[Op], Op]:
    """``sample.draw`` with another seed, position or case."""

    def make(op: Op) -> Op:
        def run(logprobs: Any, seeds: Any, positions: Any, *, case: int = 0) -> Any:
            given = {"seeds": seeds, "positions": positions, "case": case}
            given |= {name: change(given[name]) for name, change in changed.items()}
            return op(logprobs, given["seeds"], given["positions"], case=given["case"])

        return run

    return make


def _first_sum_not_below(op: Op) -> Op:
    """The first running sum that is at least r, not above it."""

    def run(logprobs: Any, *args: Any, **kw: Any) -> Any:
        search = torch.searchsorted

        def left(sums: Any, values: Any, *, right: bool) -> Any:
            return search(sums, values, right=False)

        with mock.patch.object(torch, "searchsorted", left):
            return op(logprobs, *args, **kw)

    return run


def _fallback_to_the_first(op: Op) -> Op:
    def run(logprobs: Any, *args: Any, **kw: Any) -> Any:
        out = op(logprobs, *args, **kw)
        heavy = (logprobs.exp() * 2.0**31).floor().sum(1) > 0
        return torch.where(heavy, out, torch.zeros_like(out))

    return run


def _patched(name: str, make_value: Callable[[Any], Any]) -> Callable[[Op], Op]:
    """``sample.verify`` with something inside ``deepinfer_cpu.ops.accept`` replaced."""

    def make(op: Op) -> Op:
        def run(*args: Any, **kw: Any) -> Any:
            from deepinfer_cpu.ops import accept

            with mock.patch.object(accept, name, make_value(getattr(accept, name))):
                return op(*args, **kw)

        return run

    return make


def _accepted_beyond_a_refusal(op: Op) -> Op:
    """All rows whose draft would pass are counted, whatever lies before them."""

    def run(logits: Any, params: Any, draft: Any, **kw: Any) -> Any:
        out = dict(op(logits, params, draft, **kw))
        first = params.first_row.tolist()
        for i, (begin, end) in enumerate(pairwise(first)):
            passed = [t for t in range(begin, end - 1) if float(out["accept_prob"][t]) > 0.5]
            out["accepted"][i] = max(int(out["accepted"][i]), len(passed))
        return out

    return run


def _u_may_be_equal(noise: Any) -> Any:
    """``u <= ratio``: u less the least there is, so that u = 0 passes a ratio of 0."""
    return lambda params: noise(params) - np.nextafter(0, 1)


SAMPLING, ACCEPT = "backend/test_sampling.py", "backend/test_accept.py"
MASK, LOGPROBS, DRAW, VERIFY = "sample.mask", "sample.logprobs", "sample.draw", "sample.verify"
MUTANTS = [
    Mutant(name="mask_bits_from_the_other_end", op=MASK, make=_bits_from_the_other_end, caught_by=SAMPLING,
           test="mask", level="smoke"),
    Mutant(name="mask_words_from_the_other_end", op=MASK, make=_words_from_the_other_end, caught_by=SAMPLING,
           test="mask", level="smoke"),
    Mutant(name="mask_of_a_step_past_the_rows", op=MASK, make=_step_past_the_rows, caught_by=SAMPLING, test="mask",
           level="smoke"),
    Mutant(name="mask_line_by_request_order", op=MASK, make=_mask_line_of_the_request, caught_by=SAMPLING, test="mask",
           level="smoke"),
    Mutant(name="top_k_before_top_p", op=LOGPROBS, make=_top_k_before_top_p, caught_by=SAMPLING, test="order",
           level="smoke"),
    Mutant(name="top_p_drops_the_crossing_token", op=LOGPROBS, make=_crossing_token_dropped, caught_by=SAMPLING,
           test="mass", level="smoke"),
    Mutant(name="ties_to_the_higher_id", op=LOGPROBS, make=_ties_to_the_higher_id, caught_by=SAMPLING, test="equal",
           level="smoke"),
    Mutant(name="kept_tokens_not_renormalised", op=LOGPROBS, make=_not_renormalised, caught_by=SAMPLING, test="order",
           level="smoke"),
    Mutant(name="min_p_ignored", op=LOGPROBS, make=_with(min_p=lambda v, p: None), caught_by=SAMPLING, test="order",
           level="smoke"),
    Mutant(name="greedy_rows_keep_all_tokens", op=LOGPROBS, caught_by=SAMPLING, test="order", level="smoke",
           make=_with(temperature=lambda v, p: v.clamp(min=1e-4))),
    Mutant(name="draw_at_the_position_before", op=DRAW, make=_draws(positions=lambda p: (p - 1).clamp(min=0)),
           caught_by=SAMPLING, test="golden", level="smoke"),
    Mutant(name="draw_ignores_the_case", op=DRAW, make=_draws(case=lambda c: 0), caught_by=SAMPLING,
           test="show_the_key"),
    Mutant(name="draw_ignores_upper_seed_bits", op=DRAW, make=_draws(seeds=lambda s: s & 0xFFFFFFFF),
           caught_by=SAMPLING, test="show_the_key"),
    Mutant(name="draw_takes_the_first_sum_not_below", op=DRAW, make=_first_sum_not_below, caught_by=SAMPLING,
           test="greatest", level="smoke"),
    Mutant(name="draw_without_weight_gives_the_first", op=DRAW, make=_fallback_to_the_first, caught_by=SAMPLING,
           test="without_weight", level="smoke"),
    Mutant(name="draft_accepted_at_equality", op=VERIFY, make=_patched("_accept_noise", _u_may_be_equal),
           caught_by=ACCEPT, test="may_not_come", level="smoke"),
    Mutant(name="residual_is_the_target", op=VERIFY, make=_patched("KEEP", lambda v: 0.0), caught_by=ACCEPT,
           test="request_by_request"),
    Mutant(name="residual_may_be_empty", op=VERIFY, make=_patched("KEEP", lambda v: 1.0), caught_by=ACCEPT,
           test="nearly_always", level="smoke"),
    Mutant(name="accepted_beyond_a_refusal", op=VERIFY, make=_accepted_beyond_a_refusal, caught_by=ACCEPT,
           test="request_by_request"),
    Mutant(name="coupled_noise_of_case_zero", op=VERIFY, make=_patched("NOISE_CASE", lambda v: 0), caught_by=ACCEPT,
           test="request_by_request and coupled"),
    Mutant(name="keys_by_row_not_by_position", op=VERIFY, caught_by=ACCEPT, test="request_by_request",
           make=_with(positions=lambda v, p: torch.arange(len(v)).to(v.dtype))),
    Mutant(name="forced_tokens_ignored", op=VERIFY, caught_by=ACCEPT, test="forced", level="smoke",
           make=lambda op: lambda *args, forced=None, **kw: op(*args, **kw)),
    Mutant(name="stop_tokens_ignored", op=VERIFY, caught_by=ACCEPT, test="greedy", level="smoke",
           make=lambda op: lambda *args, stop_ids=None, **kw: op(*args, **kw)),
]  # fmt: skip
