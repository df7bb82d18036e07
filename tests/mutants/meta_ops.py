"""Faults of integer metadata: index rows, slots, lengths, fed tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from mutant import Mutant

Op = Callable[..., Any]


def _field(change: Callable[[dict[str, Any]], None]) -> Callable[[Op], Op]:
    """An op whose result is a mapping, with something in it changed."""

    def make(op: Op) -> Op:
        def run(*args: Any, **kw: Any) -> Any:
            out = dict(op(*args, **kw))
            change(out)
            return out

        return run

    return make


def _shorter_window(out: dict[str, Any]) -> None:
    length = out["swa_offset_len"][:, 1]
    out["swa_offset_len"] = torch.stack([out["swa_offset_len"][:, 0], length - (length > 1).int()], 1)


def _placeholders_store(out: dict[str, Any]) -> None:
    out["slot_swa"] = out["slot_swa"].clamp(min=0)


def _entry_visible_early(out: dict[str, Any]) -> None:
    out["klen"] = {r: (out["positions"] + r) // r for r in out["klen"]}


def _no_last_key(out: dict[str, Any]) -> None:
    index = out["window_index"]
    seen = (index >= 0).sum(1, keepdim=True)
    column = torch.arange(index.shape[1])
    out["window_index"] = index.masked_fill((column == seen - 1) & (seen > 1), -1)


def _shifted_positions(out: dict[str, Any]) -> None:
    out["positions"] = out["positions"] - 1


def _without_wrap(op: Op) -> Op:
    def run(offset_len: Any, ring: int, width: int) -> Any:
        column = torch.arange(width, dtype=torch.int32)
        return (offset_len[:, :1] + column).masked_fill(column >= offset_len[:, 1:], -1)

    return run


def _second_run_from_its_column(op: Op) -> Op:
    """The second run starts at ``b + k`` and not at ``b + k - n_a``."""

    def run(pivots: Any, width: int) -> Any:
        a, n_a, b, n_b = pivots.unsqueeze(-1).unbind(1)
        k = torch.arange(width, dtype=torch.int32)
        return torch.where(k < n_a, a + k, b + k).masked_fill(k >= n_a + n_b, -1)

    return run


def _identity_by_its_ends(op: Op) -> Op:
    def run(x: Any, idx: Any) -> Any:
        n = x.shape[0]
        same = len(idx) == n and n > 0 and int(idx[0]) == 0 and int(idx[-1]) == n - 1
        return x.clone() if same else op(x, idx)

    return run


def _absent_rows_times_zero(op: Op) -> Op:
    def run(x: Any, idx: Any) -> Any:
        if not x.is_floating_point() or not x.shape[0]:
            return op(x, idx)
        inside = (idx >= 0) & (idx < x.shape[0])
        rows = x[idx.long().clamp(0, x.shape[0] - 1)]
        return rows * inside.view(-1, *[1] * (x.dim() - 1)).to(x.dtype)

    return run


def _accepted_forgotten(op: Op) -> Op:
    def run(start: Any, seqlens_q: Any, remap: Any, accepted: Any, *, num_draft: int) -> Any:
        return op(start, seqlens_q, remap, torch.zeros_like(accepted), num_draft=num_draft)

    return run


def _ties_to_the_later_row(op: Op) -> Op:
    def run(confidence: Any, remap: Any, budget: int) -> Any:
        order = torch.arange(len(confidence), dtype=torch.int32) if remap is None else remap
        return op(confidence, order.flip(0), budget).flip(0)

    return run


def _single_confidences(op: Op) -> Op:
    """Each draft by its own confidence, not by the product up to it."""

    def run(confidence: Any, remap: Any, budget: int) -> Any:
        known = torch.nan_to_num(confidence).clamp(0, 1)
        ratio = known.clone()
        ratio[:, 1:] = (known[:, 1:] / known[:, :-1].clamp(min=1e-9)).clamp(max=1)
        return op(ratio, remap, budget)

    return run


META, FEED, VERIFY, DRAFT = (f"backend/test_{name}.py" for name in ("meta", "feed", "verify", "draft"))
MUTANTS = [
    Mutant(name="window_one_key_short", op="meta.decode_metadata", caught_by=META, make=_field(_shorter_window),
           test="metadata", level="smoke"),
    Mutant(name="placeholders_store_into_slot_zero", op="meta.decode_metadata", caught_by=META, test="follow",
           make=_field(_placeholders_store)),
    Mutant(name="unfinished_entries_are_visible", op="meta.decode_metadata", caught_by=META, test="metadata",
           make=_field(_entry_visible_early), level="smoke"),
    Mutant(name="window_does_not_wrap", op="meta.window_index_decode", caught_by=META, make=_without_wrap,
           test="wrap", level="smoke"),
    Mutant(name="second_run_starts_too_far", op="meta.window_index_prefill", caught_by=META, level="smoke",
           make=_second_run_from_its_column, test="runs"),
    Mutant(name="absent_compressed_indices_are_shifted", op="meta.index_cat", caught_by=META, level="smoke",
           make=lambda op: lambda window, compressed, offset: torch.cat([window, compressed + offset], 1),
           test="behind"),
    Mutant(name="entries_past_the_context_keep_a_slot", op="meta.logical_to_slot", caught_by=META, level="smoke",
           make=lambda op: lambda e, table, per_block, context=None: op(
               e.clamp(max=table.shape[1] * per_block - 1), table, per_block), test="entries"),
    Mutant(name="compressed_index_forgets_its_base", op="meta.compressed_index", caught_by=META, level="smoke",
           make=lambda op: lambda rows, width, **kw: op(rows, width, **{**kw, "base": 0}), test="consecutive"),
    Mutant(name="placeholders_get_the_last_table", op="meta.block_tables", caught_by=META, level="smoke",
           make=lambda op: lambda tables, rows: tables[rows.long().clamp(0, len(tables) - 1)], test="null"),
    Mutant(name="gather_takes_the_identity_by_its_ends", op="meta.gather_rows", caught_by=META, level="smoke",
           make=_identity_by_its_ends, test="gathered"),
    Mutant(name="gather_multiplies_absent_rows_by_zero", op="meta.gather_rows", caught_by=META, level="smoke",
           make=_absent_rows_times_zero, test="gathered"),
    Mutant(name="gather_returns_its_source", op="meta.gather_rows", caught_by=META, test="no_view",
           make=lambda op: lambda x, idx: x if len(idx) == len(x) else op(x, idx)),
    Mutant(name="lengths_forget_accepted_drafts", op="meta.correct_lengths", caught_by=FEED, level="smoke",
           make=_accepted_forgotten, test="lengths"),
    Mutant(name="windows_forget_accepted_drafts", op="meta.feed_tokens", caught_by=FEED, level="smoke",
           make=lambda op: lambda *args, accepted=None, **kw: op(*args, **kw), test="accepted"),
    Mutant(name="mapped_rows_feed_what_the_host_knew", op="meta.feed_tokens", caught_by=FEED, test="step_before_gave",
           make=lambda op: lambda fresh, q, remap, *args, **kw: op(fresh, q, torch.full_like(q, -1), *args, **kw)),
    Mutant(name="equal_drafts_go_to_the_later_row", op="meta.verify_lengths", caught_by=VERIFY, level="smoke",
           make=_ties_to_the_later_row),
    Mutant(name="drafts_ranked_by_single_confidences", op="meta.verify_lengths", caught_by=VERIFY, level="smoke",
           make=_single_confidences),
    Mutant(name="drafter_misses_the_last_key", op="meta.draft_inputs", caught_by=DRAFT, level="smoke",
           make=_field(_no_last_key)),
    Mutant(name="drafter_starts_one_position_early", op="meta.draft_inputs", caught_by=DRAFT, level="smoke",
           make=_field(_shifted_positions)),
]  # fmt: skip
