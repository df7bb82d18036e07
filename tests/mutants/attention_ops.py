"""Faults of attention and of the indexer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from mutant import Mutant

Op = Callable[..., Any]


def _without(*names: str) -> Callable[[Op], Op]:
    """An op that does not read some of its options."""
    return lambda op: lambda *args, **kw: op(*args, **{k: v for k, v in kw.items() if k not in names})


def _sink_has_a_value(op: Op) -> Op:
    """The sink's share of the weight is added to the output, as if it had a key of ones."""

    def run(*args: Any, sink: Any = None, **kw: Any) -> Any:
        out, lse = op(*args, sink=sink, **kw)
        if sink is not None:
            share = torch.sigmoid(sink - torch.where(lse == math.inf, -math.inf, lse))
            out += share.unsqueeze(2).to(out.dtype)
        return out, lse

    return run


def _lse_with_sink(op: Op) -> Op:
    def run(*args: Any, sink: Any = None, **kw: Any) -> Any:
        out, lse = op(*args, sink=sink, **kw)
        return out, lse if sink is None else torch.where(lse == math.inf, lse, torch.logaddexp(lse, sink))

    return run


def _sink_for_each_part(op: Op) -> Op:
    """Window and extra keys are attended to apart, the sink in both, and merged by their log-sum-exp."""

    def run(q: Any, window: Any, idx: Any, *, extra: Any = None, extra_idx: Any = None, **kw: Any) -> Any:
        if extra is None:
            return op(q, window, idx, **kw)
        lengths, out = kw.pop("extra_lengths", None), kw.pop("out", None)
        first, first_lse = op(q, window, idx, **kw)
        none = torch.full_like(idx[:, :1], -1)
        kw.pop("lengths", None)
        second, second_lse = op(q, window, none, extra=extra, extra_idx=extra_idx, extra_lengths=lengths, **kw)
        both = torch.stack([first_lse, second_lse])
        both = torch.where(both == math.inf, -math.inf, both)
        share = torch.softmax(both, 0).nan_to_num(0.0).unsqueeze(3)
        merged = (share[0] * first.float() + share[1] * second.float()).to(q.dtype)
        total = torch.logsumexp(both, 0)
        lse = torch.where(total == -math.inf, math.inf, total)
        return (merged if out is None else out.copy_(merged)), lse

    return run


def _merge_without_rescale(op: Op) -> Op:
    """Two halves of the keys, each with its own maximum, whose sums are added as they are."""

    def run(q: Any, kv: Any, indices: Any, *, scale: float, sink: Any = None, lengths: Any = None, out: Any = None,
            round_probs: Any = None) -> Any:  # fmt: skip
        column = torch.arange(indices.shape[1])
        valid = (indices >= 0) & (indices < len(kv))
        if lengths is not None:
            valid &= column < lengths.unsqueeze(1)
        keys = kv.float()[indices.clamp(0, max(len(kv) - 1, 0)).long()] * valid.unsqueeze(2)
        scores = torch.einsum("thd,tkd->thk", q.float(), keys) * scale
        scores = scores.masked_fill(~valid.unsqueeze(1), -math.inf)
        half, top, mixed, total = indices.shape[1] // 2, [], 0, 0
        for part in (slice(0, half), slice(half, None)):
            if scores[:, :, part].shape[2]:
                high = scores[:, :, part].amax(2, keepdim=True).clamp(min=-1e30)
                weights = (scores[:, :, part] - high).exp()
                mixed = mixed + weights @ keys[:, part]
                total = total + weights.sum(2, keepdim=True)
                top.append(high)
        high = torch.stack(top).amax(0)
        if sink is not None:
            total = total + (sink.view(1, -1, 1) - high).exp()
        result = (mixed / total.clamp(min=1e-30)).to(q.dtype)
        return (result if out is None else out.copy_(result)), op(q, kv, indices, scale=scale, lengths=lengths)[1]

    return run


def _shifted(name: str, by: int) -> Callable[[Op], Op]:
    """One key more or less than the lengths say."""

    def make(op: Op) -> Op:
        def run(*args: Any, **kw: Any) -> Any:
            if kw.get(name) is not None:
                kw[name] = (kw[name] + by).clamp(min=0)
            return op(*args, **kw)

        return run

    return make


def _first_key_missing(op: Op) -> Op:
    def run(q: Any, window: Any, idx: Any, **kw: Any) -> Any:
        idx = idx.clone()
        idx[:, 0] = -1
        return op(q, window, idx, **kw)

    return run


def _absent_slot_is_slot_zero(op: Op) -> Op:
    return lambda q, window, idx, **kw: op(q, window, idx.clamp(min=0), **kw)


def _past_the_buffer_is_its_end(op: Op) -> Op:
    return lambda q, kv, indices, **kw: op(q, kv, indices.clamp(max=len(kv) - 1) if len(kv) else indices, **kw)


def _each_key_once(op: Op) -> Op:
    def run(q: Any, kv: Any, indices: Any, **kw: Any) -> Any:
        seen = torch.stack([(indices[:, :c] == indices[:, c : c + 1]).any(1) for c in range(indices.shape[1])], 1)
        return op(q, kv, indices.masked_fill(seen, -1), **kw)

    return run


def _split_by_batch(op: Op) -> Op:
    """The order of the keys depends on how many rows there are."""

    def run(q: Any, kv: Any, indices: Any, **kw: Any) -> Any:
        if len(q) == 6:
            kw = {k: v for k, v in kw.items() if k != "lengths"} | {"lengths": None}
            lengths = run.lengths  # type: ignore[attr-defined]
            column = torch.arange(indices.shape[1])
            kept = indices if lengths is None else indices.masked_fill(column >= lengths.unsqueeze(1), -1)
            return op(q, kv, kept.flip(1), **kw)
        return op(q, kv, indices, **kw)

    def entry(q: Any, kv: Any, indices: Any, **kw: Any) -> Any:
        run.lengths = kw.get("lengths")  # type: ignore[attr-defined]
        return run(q, kv, indices, **kw)

    return entry


def _ties_to_the_later_index(op: Op) -> Op:
    def run(scores: Any, k: int, *, end: Any, offset: Any = None, want_values: bool = False, out: Any = None) -> Any:
        n = scores.shape[1]
        hidden = torch.arange(n) >= end.unsqueeze(1)
        turned = scores.masked_fill(hidden, -math.inf).flip(1)
        found = op(turned, k, end=torch.full_like(end, n))
        found = torch.where(found < 0, n, n - 1 - found).sort(1).values
        found = torch.where(found == n, -1, found).to(torch.int32)
        values = scores.float().gather(1, found.long().clamp(min=0)).masked_fill(found < 0, -math.inf) if n else None
        found = found if offset is None else torch.where(found < 0, found, found + offset.unsqueeze(1))
        found = found if out is None else out.copy_(found)
        return (found, values) if want_values else found

    return run


def _best_first(op: Op) -> Op:
    """The right set, ordered by score."""

    def run(scores: Any, k: int, *, end: Any, **kw: Any) -> Any:
        if kw:
            return op(scores, k, end=end, **kw)
        found, values = op(scores, k, end=end, want_values=True)
        return found.gather(1, values.sort(dim=1, descending=True, stable=True).indices)

    return run


def _fills_up_with_minus_infinity(op: Op) -> Op:
    def run(scores: Any, k: int, **kw: Any) -> Any:
        return op(scores.masked_fill(scores == -math.inf, -3e38), k, **kw)

    return run


def _newest_block_behind(op: Op) -> Op:
    """The newest block is taken to be ``valid // block``."""

    def run(scores: Any, valid: Any, block: int) -> Any:
        n = scores.shape[1]
        best, counts = op(scores, valid, block)
        plain = torch.nn.functional.pad(scores.float(), (0, -n % block), value=-math.inf)
        plain = plain.masked_fill(torch.arange(plain.shape[1]) >= valid.unsqueeze(1), -math.inf)
        best = plain.view(len(scores), -1, block).amax(2).clamp(max=torch.finfo(torch.bfloat16).max) if n else best
        wrong = torch.arange(best.shape[1]) == (valid // block).unsqueeze(1)
        return best.masked_fill(wrong, math.inf), counts

    return run


def _block_scores_of_all(op: Op) -> Op:
    """Entries behind the visible ones count."""

    def run(scores: Any, valid: Any, block: int) -> Any:
        best, counts = op(scores, torch.full_like(valid, scores.shape[1]), block)
        return best, (valid + block - 1) // block if scores.shape[1] else counts

    return run


def _absent_candidates_restored(op: Op) -> Op:
    return lambda compact, candidates, block, **kw: op(compact, candidates.clamp(min=0), block, **kw)


def _without_relu(op: Op) -> Op:
    """Each score is the one of q less the one of -q: products below zero count."""

    def run(q: Any, weights: Any, keys: Any, **kw: Any) -> Any:
        out = kw.pop("out", None)
        scores = op(q, weights, keys, **kw)
        if isinstance(q, torch.Tensor):
            scores = torch.where(scores > -math.inf, scores - op(-q, weights, keys, **kw), scores)
        return scores if out is None else out.copy_(scores)

    return run


ATTENTION, INDEXER = "backend/test_attention.py", "backend/test_indexer.py"
PREFILL, DECODE = "attn.sparse_prefill", "attn.sparse_decode"
MUTANTS = [
    Mutant(name="prefill_without_sink", op=PREFILL, make=_without("sink"), caught_by=ATTENTION, level="smoke"),
    Mutant(name="decode_without_sink", op=DECODE, make=_without("sink"), caught_by=ATTENTION, level="smoke"),
    Mutant(name="sink_has_a_value", op=DECODE, make=_sink_has_a_value, caught_by=ATTENTION, level="smoke"),
    Mutant(name="lse_includes_the_sink", op=PREFILL, make=_lse_with_sink, caught_by=ATTENTION, level="smoke"),
    Mutant(name="sink_in_each_part", op=DECODE, make=_sink_for_each_part, caught_by=ATTENTION, level="smoke"),
    Mutant(name="parts_merged_without_rescale", op=PREFILL, make=_merge_without_rescale, caught_by=ATTENTION,
           test="listed_keys_only"),
    Mutant(name="decode_reads_stale_entries", op=DECODE, make=_without("lengths"), caught_by=ATTENTION, level="smoke"),
    Mutant(name="decode_reads_one_entry_too_many", op=DECODE, make=_shifted("extra_lengths", 1), caught_by=ATTENTION,
           level="smoke"),
    Mutant(name="prefill_misses_the_last_key", op=PREFILL, make=_shifted("lengths", -1), caught_by=ATTENTION,
           test="listed_keys_only"),
    Mutant(name="decode_misses_the_first_key", op=DECODE, make=_first_key_missing, caught_by=ATTENTION, level="smoke"),
    Mutant(name="absent_slots_read_slot_zero", op=DECODE, make=_absent_slot_is_slot_zero, caught_by=ATTENTION,
           level="smoke"),
    Mutant(name="indices_past_the_buffer_read_its_end", op=PREFILL, make=_past_the_buffer_is_its_end, level="smoke",
           caught_by=ATTENTION),
    Mutant(name="equal_keys_count_once", op=PREFILL, make=_each_key_once, caught_by=ATTENTION, test="listed_keys_only"),
    Mutant(name="decode_ignores_the_extra_cache", op=DECODE, make=_without("extra", "extra_idx"), caught_by=ATTENTION,
           level="smoke"),
    Mutant(name="order_of_keys_depends_on_the_batch", op=PREFILL, make=_split_by_batch, caught_by=ATTENTION,
           test="same_bits"),
    Mutant(name="topk_ties_to_the_later_index", op="index.topk", make=_ties_to_the_later_index, caught_by=INDEXER,
           test="topk", level="smoke"),
    Mutant(name="topk_orders_by_score", op="index.topk", make=_best_first, caught_by=INDEXER, test="topk"),
    Mutant(name="topk_fills_up_with_hidden_entries", op="index.topk", make=_fills_up_with_minus_infinity,
           caught_by=INDEXER, test="topk"),
    Mutant(name="topk_sees_past_the_end", op="index.topk", caught_by=INDEXER, test="topk", level="smoke",
           make=lambda op: lambda scores, k, *, end, **kw: op(scores, k, end=end + 1, **kw)),
    Mutant(name="newest_block_is_the_next_one", op="index.block_max", make=_newest_block_behind, caught_by=INDEXER,
           test="block", level="smoke"),
    Mutant(name="hidden_entries_count_in_blocks", op="index.block_max", make=_block_scores_of_all, caught_by=INDEXER,
           test="block", level="smoke"),
    Mutant(name="absent_candidates_are_restored", op="index.restore", make=_absent_candidates_restored,
           caught_by=INDEXER, level="smoke", test="compact"),
    Mutant(name="index_scores_one_entry_short", op="index.logits", make=_shifted("context_lens", -1),
           caught_by=INDEXER, test="paged"),
    Mutant(name="index_scores_without_relu", op="index.logits", make=_without_relu, caught_by=INDEXER, level="smoke"),
    Mutant(name="index_scores_ignore_candidates", op="index.logits", make=_without("candidates"), caught_by=INDEXER,
           test="candidate"),
]  # fmt: skip
