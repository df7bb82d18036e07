"""Faults of ops that store, load and compress cache entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import torch
from mutant import Mutant

Op = Callable[..., Any]


def _store_at(change: Callable[[Any], Any]) -> Callable[[Op], Op]:
    """``cache.store`` with other slots."""
    return lambda op: lambda kv, view, slots, **kw: op(kv, view, change(slots), **kw)


def _bytes_behind_the_page(op: Op) -> Op:
    """Whole words are written, so one byte behind the last entry of a page changes with it."""

    def store(kv: Any, view: Any, slots: Any, **kw: Any) -> Any:
        out = op(kv, view, slots, **kw)
        if slots.numel() and int(slots.max()) >= 0:
            storage = torch.empty(0, dtype=torch.uint8).set_(view.tensor.untyped_storage())
            size = view.page * view.layout.entry_bytes(view.width)
            end = view.tensor.storage_offset() + int(slots.max()) // view.page * view.block_stride + size
            if end < storage.numel():
                storage[end] ^= 1
        return out

    return store


def _page_by_page_without_stride(op: Op) -> Op:
    """Units are taken to follow each other without a gap."""

    def store(kv: Any, view: Any, slots: Any, **kw: Any) -> Any:
        size = view.layout.entry_bytes(view.width)
        split = view.layout.split_page
        shape = (view.tensor.shape[0], view.page * size) if split else (view.tensor.shape[0], view.page, size)
        steps = (view.page * size, 1) if split else (view.page * size, size, 1)
        dense = view.tensor.as_strided(shape, steps, view.tensor.storage_offset())
        return op(kv, attrs.evolve(view, tensor=dense, block_stride=view.page * size), slots, **kw)

    return store


def _interleaved(view: Any) -> Any:
    """A page-wide format read as data and scales side by side."""
    if not view.layout.split_page:
        return view
    size = view.layout.entry_bytes(view.width)
    tensor = view.tensor.view(view.tensor.shape[0], view.page, size)
    other = attrs.evolve(view, tensor=tensor)
    other.layout = attrs.evolve(view.layout, split_page=False)
    return other


def _swapped_nibbles(op: Op) -> Op:
    return lambda kv, view, slots, **kw: op(
        kv.view(kv.shape[0], kv.shape[1] // 2, 2).flip(2).reshape(kv.shape), view, slots, **kw
    )


def _absent_unit_is_the_first(op: Op) -> Op:
    def load(view: Any, segments: Any, total: int, **kw: Any) -> Any:
        segments = segments.clone()
        segments[:, 0].clamp_(min=0)
        return op(view, segments, total, **kw)

    return load


def _unnamed_rows_keep_what_was_there(op: Op) -> Op:
    def load(view: Any, segments: Any, total: int, **kw: Any) -> Any:
        named = torch.zeros(total, dtype=torch.bool)
        for _, begin, end, to in segments.tolist():
            named[to : to + end - begin] = True
        out = op(view, segments, total, **kw)
        if isinstance(out, torch.Tensor):
            out[~named] = 1.0
        return out

    return load


def _last_entry_of_a_run_is_left_out(op: Op) -> Op:
    def load(view: Any, segments: Any, total: int, **kw: Any) -> Any:
        segments = segments.clone()
        segments[:, 2] = torch.where(segments[:, 2] > segments[:, 1] + 1, segments[:, 2] - 1, segments[:, 2])
        return op(view, segments, total, **kw)

    return load


def _clear_forgets_index_pages(op: Op) -> Op:
    def alloc(specs: Any, units: Any) -> Any:
        caches = op(specs, units)
        clear = caches.zero

        def zero(pool: str, ids: Any) -> None:
            views = [caches.view(s.name, n.layer) for s in specs if s.pool == "index" for n in s.layers]
            kept = [view.tensor.clone() for view in views]
            clear(pool, ids)
            for view, before in zip(views, kept, strict=True):
                view.tensor.copy_(before)

        caches.zero = zero
        return caches

    return alloc


def _ring_off_by_one(op: Op) -> Op:
    def prefill(score: Any, latent: Any, state: Any, *args: Any, **kw: Any) -> Any:
        turned = state.roll(-1, 1)
        out = op(score, latent, turned, *args, **kw)
        state.copy_(turned.roll(1, 1))
        return out

    return prefill


def _score_and_latent_swapped(op: Op) -> Op:
    return lambda score, latent, *args, **kw: op(latent, score, *args, **kw)


def _ring_overwritten_before_it_is_read(op: Op) -> Op:
    def prefill(score: Any, latent: Any, state: Any, *args: Any, **kw: Any) -> Any:
        written = state.clone()
        op(score, latent, written, *args, **kw)
        out = op(score, latent, written.clone(), *args, **kw)
        state.copy_(written)
        return out

    return prefill


def _rows_read_before_others_are_written(op: Op) -> Op:
    def decode(score: Any, latent: Any, state: Any, slots: Any, lengths: Any, ratio: int, **kw: Any) -> Any:
        before = state.clone()
        out = op(score, latent, state, slots, lengths, ratio, **kw)
        for t in range(len(out)):
            row = slice(t, t + 1)
            out[row] = op(score[row], latent[row], before.clone(), slots[row], lengths[row], ratio, **kw)
        return out

    return decode


def _rows_of_nobody_write_slot_zero(op: Op) -> Op:
    return lambda s, v, state, slots, *args, **kw: op(s, v, state, slots.clamp(min=0), *args, **kw)


def _softmax_over_channels(op: Op) -> Op:
    """One weight for all channels of a row."""
    return lambda score, *args, **kw: op(score.mean(1, keepdim=True).expand_as(score).contiguous(), *args, **kw)


def _one_position_less(op: Op) -> Op:
    return lambda src, dst, last_hit: op(src, dst, max(0, last_hit - 1))


CACHE, COMPRESS = "backend/test_cache.py", "backend/test_compress.py"
MUTANTS = [
    Mutant(name="store_minus_one_writes_page_zero", op="cache.store", caught_by=CACHE, test="skips",
           make=_store_at(lambda slots: slots.clamp(min=0)), level="smoke"),
    Mutant(name="store_off_by_one_slot", op="cache.store", caught_by=CACHE, test="window_ring", level="smoke",
           make=_store_at(lambda slots: torch.where(slots > 0, slots - 1, slots))),
    Mutant(name="store_touches_a_byte_behind_the_page", op="cache.store", caught_by=CACHE, test="nothing_else",
           make=_bytes_behind_the_page),
    Mutant(name="store_ignores_the_block_stride", op="cache.store", caught_by=CACHE, test="nothing_else",
           make=_page_by_page_without_stride),
    Mutant(name="store_of_index_keys_interleaves_tokens", op="cache.store", caught_by=CACHE, test="index_keys",
           make=lambda op: lambda kv, view, slots, **kw: op(kv, _interleaved(view), slots, **kw)),
    Mutant(name="store_swaps_nibbles", op="cache.store", caught_by=CACHE, test="nothing_else and fp4",
           make=_swapped_nibbles),
    Mutant(name="load_of_index_keys_interleaves_tokens", op="cache.load_segments", caught_by=CACHE, test="index_keys",
           make=lambda op: lambda view, *args, **kw: op(_interleaved(view), *args, **kw)),
    Mutant(name="load_of_an_absent_unit_reads_the_first", op="cache.load_segments", caught_by=CACHE, test="of_nothing",
           make=_absent_unit_is_the_first, level="smoke"),
    Mutant(name="load_leaves_unnamed_rows", op="cache.load_segments", caught_by=CACHE, test="of_nothing",
           make=_unnamed_rows_keep_what_was_there, level="smoke"),
    Mutant(name="load_drops_the_last_entry_of_a_run", op="cache.load_segments", caught_by=CACHE, test="gathers_runs",
           make=_last_entry_of_a_run_is_left_out),
    Mutant(name="clear_forgets_index_pages", op="cache.alloc", caught_by=CACHE, test="cleared", level="smoke",
           make=_clear_forgets_index_pages),
    Mutant(name="compressor_ring_off_by_one", op="compress.prefill", caught_by=COMPRESS, level="smoke",
           make=_ring_off_by_one),
    Mutant(name="compressor_score_and_latent_swapped", op="compress.decode", caught_by=COMPRESS, level="smoke",
           make=_score_and_latent_swapped),
    Mutant(name="compressor_overwrites_its_ring_too_early", op="compress.prefill", caught_by=COMPRESS,
           make=_ring_overwritten_before_it_is_read, test="any_length"),
    Mutant(name="compressor_reads_before_it_writes", op="compress.decode", caught_by=COMPRESS, test="before_it_reads",
           make=_rows_read_before_others_are_written),
    Mutant(name="compressor_of_nobody_writes_slot_zero", op="compress.decode", caught_by=COMPRESS, level="smoke",
           make=_rows_of_nobody_write_slot_zero),
    Mutant(name="compressor_weighs_channels_alike", op="compress.prefill", caught_by=COMPRESS, level="smoke",
           make=_softmax_over_channels),
    Mutant(name="state_copy_stops_one_position_early", op="compress.state_copy", caught_by=COMPRESS, level="smoke",
           make=_one_position_less, test="copy"),
]  # fmt: skip
