"""Bounded replay of the decoder half: the equivalences of ``spec/model.md`` 5.4."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from v41_driver import Driver, Sequence_
from v41_models import make_driver, shipped
from v41_tiny import SMALL, prompt, tiny_path

from deepinfer_contracts import ReplayMode
from deepinfer_cpu.ops.cache import gather

WINDOW = 8
OFF, MASK, COMPACT = ReplayMode


@functools.cache
def driver_of(variant: Any = "released", draft_tokens: int = 0) -> Driver:
    path = tiny_path(sliding_window=WINDOW, candidate_block_size=4, index_topk=8, max_position_embeddings=256, **SMALL)
    return make_driver(path, variant, block_size=8, blocks=80, slots=8, draft_tokens=draft_tokens)


def least_keep(driver: Driver) -> int:
    return driver.geometry.swa_ring


def opened(driver: Driver, ids: Sequence[int], mode: ReplayMode, keep: int, length: int | None = None) -> Sequence_:
    """A sequence whose prompt is the first ``length`` ids; the others are decoded."""
    s = driver.open(ids)
    s.replay_mode = mode
    n = len(ids) if length is None else length
    s.keep_from = max(0, n - keep) if mode != OFF else 0
    return s


def prefilled(driver: Driver, s: Sequence_, inputs: ReplayMode, length: int, chunks: Sequence[int]) -> Tensor:
    """Hidden rows of the prompt, ``chunks`` in turn."""
    driver.replay_inputs = inputs
    out, i = [], 0
    while s.done < length:
        out.append(driver.run([(s, min(chunks[i % len(chunks)], length - s.done))], prompt=True))
        i += 1
    return torch.cat(out)


def global_bytes(driver: Driver, s: Sequence_, length: int) -> Tensor:
    """Everything in the full blocks of the prompt."""
    return driver.caches._matrix("main")[s.block_table[: length // driver.geometry.block_size]].clone()


def ring_bytes(driver: Driver, s: Sequence_, positions: range, layers: Sequence[int]) -> Tensor:
    """Window entries of these positions in these layers."""
    rows = s.swa_slot * driver.geometry.swa_ring + torch.tensor([p % driver.geometry.swa_ring for p in positions])
    out = [gather(driver.caches.view("swa", layer), rows) for layer in layers]
    return torch.stack(out)


class Run:
    """One prompt of ``length`` tokens in one mode, and decode steps behind it."""

    def __init__(
        self,
        driver: Driver,
        mode: ReplayMode,
        keep: int,
        length: int,
        *,
        chunks: Sequence[int] = (4096,),
        inputs: ReplayMode | None = None,
        follow: int = 6,
        rollback: int = 0,
    ) -> None:
        ids = prompt(length + follow, seed=length)
        s = opened(driver, ids, mode, keep, length)
        self.rows = prefilled(driver, s, mode if inputs is None else inputs, length, chunks)
        self.last = driver.model.logits(self.rows[-1:])
        self.kept = self.rows[s.keep_from :]
        layers = driver.model.config.num_hidden_layers
        self.rings = ring_bytes(
            driver, s, range(max(length - driver.geometry.window, s.keep_from, 0), length), range(layers)
        )
        self.entries = global_bytes(driver, s, length)
        if rollback:  # as after rejected drafts: other tokens were there
            true = s.tokens
            s.tokens = [*true[:length], *prompt(rollback + 1, seed=99)[1:]]
            driver.run([(s, rollback)], prompt=False)
            s.tokens, s.done = true, length
        self.decoded = torch.cat(driver.decode(s, len(ids))) if follow else None
        self.sequence = s
        driver.close(s)


def require_equal(a: Run, b: Run, *, rows: bool = True) -> None:
    assert torch.equal(a.last, b.last)
    if rows:
        assert torch.equal(a.kept, b.kept)
    assert torch.equal(a.entries, b.entries)
    assert torch.equal(a.rings, b.rings)
    if a.decoded is not None and b.decoded is not None:
        assert torch.equal(a.decoded, b.decoded)


@pytest.mark.parametrize("variant", ["released", "plain"])
@pytest.mark.parametrize("chunks", [(4096,), (3, 5)])
def test_prompt_of_at_most_keep_tokens_is_the_same_in_all_modes(variant: str, chunks: Sequence[int]) -> None:
    """L1."""
    driver = driver_of(variant)
    keep = least_keep(driver)
    for length in (1, keep - 1, keep):
        off, mask, compact = (Run(driver, mode, keep, length, chunks=chunks, follow=2) for mode in ReplayMode)
        assert torch.equal(off.rows, mask.rows)
        assert torch.equal(off.rows, compact.rows)
        require_equal(off, mask)
        require_equal(off, compact)


@pytest.mark.parametrize("variant", ["released", pytest.param("plain", marks=pytest.mark.slow)])
@pytest.mark.parametrize("length", [20, 33, 70])
def test_mask_and_compact_agree_on_rows_entries_rings_and_decode_steps(variant: str, length: int) -> None:
    """L2, with roll-backs up to keep - window, and L2b: under any chunking."""
    driver = driver_of(variant)
    keep = least_keep(driver)
    want = Run(driver, MASK, keep, length, rollback=keep - WINDOW)
    for chunks in ((4096,), (1,), (7,), (keep, 5), (length - 1, 1)):
        for mode, inputs in ((COMPACT, COMPACT), (MASK, MASK), (MASK, COMPACT)):
            require_equal(Run(driver, mode, keep, length, chunks=chunks, inputs=inputs, rollback=keep - WINDOW), want)
    assert not torch.equal(want.last, Run(driver, OFF, keep, length).last)


@pytest.mark.parametrize("variant", ["released", pytest.param("kvq", marks=pytest.mark.slow)])
def test_shipped_checkpoint_keeps_what_the_tiny_ones_keep(variant: Any) -> None:
    """L1, L2, L2b and L3 on trained weights."""
    driver = shipped(variant)
    keep, length = least_keep(driver), 130
    off, mask, compact = (Run(driver, mode, keep, length, rollback=keep - 32) for mode in ReplayMode)
    require_equal(mask, compact)
    require_equal(mask, Run(driver, COMPACT, keep, length, chunks=(29, 64), rollback=keep - 32))
    assert torch.equal(off.entries, compact.entries)
    assert not torch.equal(off.last, compact.last)
    short = [Run(driver, mode, keep, keep) for mode in ReplayMode]
    require_equal(short[0], short[1])
    require_equal(short[0], short[2])


@pytest.mark.parametrize("mode", [MASK, COMPACT])
@pytest.mark.parametrize("length", [24, 70])
def test_global_entries_are_those_of_mode_off(mode: ReplayMode, length: int) -> None:
    """L3."""
    driver = driver_of()
    off, got = (Run(driver, m, least_keep(driver), length, chunks=(9,), follow=0) for m in (OFF, mode))
    assert torch.equal(off.entries, got.entries)
    encoder = driver.model.config.n_encoder_layers
    assert torch.equal(off.rings[:encoder], got.rings[:encoder])
    assert not torch.equal(off.rings[encoder:], got.rings[encoder:])


def test_off_request_in_compact_inputs_is_an_off_request() -> None:
    driver = driver_of()
    keep = least_keep(driver)
    off = Run(driver, OFF, keep, 50, chunks=(8,))
    mixed = Run(driver, OFF, keep, 50, chunks=(8,), inputs=COMPACT)
    assert torch.equal(off.rows, mixed.rows)
    require_equal(off, mixed)


def test_requests_of_three_modes_in_one_step_are_those_alone() -> None:
    driver = driver_of()
    keep = least_keep(driver)
    lengths = (40, 33, 50)
    alone = [Run(driver, mode, keep, n, inputs=COMPACT, follow=0) for mode, n in zip(ReplayMode, lengths, strict=True)]
    sequences = [opened(driver, prompt(n, seed=n), mode, keep) for mode, n in zip(ReplayMode, lengths, strict=True)]
    driver.replay_inputs = COMPACT
    rows = driver.run([(s, n) for s, n in zip(sequences, lengths, strict=True)], prompt=True).split(lengths)
    driver.close(*sequences)
    for run, got in zip(alone, rows, strict=True):
        assert torch.equal(run.kept, got[len(got) - len(run.kept) :])


def test_rows_that_are_left_out_are_zero_and_a_chunk_in_front_computes_no_decoder_row() -> None:
    driver = driver_of()
    keep = least_keep(driver)
    run = Run(driver, COMPACT, keep, 60, chunks=(20,), follow=0)
    assert not run.rows[: 60 - keep].any()
    s = opened(driver, prompt(60, seed=60), COMPACT, keep)
    driver.replay_inputs = COMPACT
    before = driver.caches._matrix("swa")[s.swa_slot].clone()
    driver.run([(s, 20)], prompt=True)
    assert (int(driver.inputs.rp_total_q), int(driver.inputs.rp_num_live)) == (1, 0)
    view = driver.caches.view("swa", driver.model.config.num_hidden_layers - 1)
    rows = s.swa_slot * driver.geometry.swa_ring + torch.arange(driver.geometry.swa_ring)
    after = gather(view, rows)
    driver.close(s)
    changed = driver.caches._matrix("swa")[s.swa_slot] != before
    assert changed.any()
    assert after is not None


@pytest.mark.parametrize("mode", [MASK, COMPACT])
def test_garbage_in_rings_and_states_changes_nothing(mode: ReplayMode) -> None:
    """What lies in a ring in front of the kept rows is another request's, or NaN."""
    driver = driver_of()
    clean = Run(driver, mode, least_keep(driver), 45, chunks=(6,))
    for pool in ("swa", "state"):
        driver.caches._matrix(pool)[1:] = 0xFF
    require_equal(Run(driver, mode, least_keep(driver), 45, chunks=(6,)), clean)


@pytest.mark.parametrize("mode", [MASK, COMPACT])
def test_token_of_the_prompt_changes_no_kept_row_in_front_of_it(mode: ReplayMode) -> None:
    driver = driver_of("plain")
    keep, ids = least_keep(driver), prompt(40, seed=3)
    other = [*ids[:35], ids[35] + 1, *ids[36:]]
    rows = []
    for tokens in (ids, other):
        s = opened(driver, tokens, mode, keep)
        rows.append(prefilled(driver, s, mode, len(ids), (4096,)))
        driver.close(s)
    assert torch.equal(rows[0][:35], rows[1][:35])
    assert not torch.equal(rows[0][35:], rows[1][35:])


def test_drafts_after_compact_are_those_after_mask() -> None:
    """Keys of the draft stages exist for kept rows, which is all that a block reads."""
    driver = driver_of("released", 2)
    keep, ids = least_keep(driver), prompt(50, seed=8)
    got = []
    for mode, chunks in ((MASK, (4096,)), (COMPACT, (4096,)), (COMPACT, (7,))):
        for pool in ("swa", "state"):
            driver.caches._matrix(pool)[1:] = 0xFF
        s = opened(driver, ids, mode, keep, 48)
        hidden = prefilled(driver, s, mode, 48, chunks)
        first = driver.draft([int(driver.model.logits(hidden[-1:]).argmax())])
        driver.run([(s, 2)], prompt=False)
        got.append((first, driver.draft([5], [1])))
        driver.close(s)
    for run in got[1:]:
        for a, b in zip(run, got[0], strict=True):
            assert torch.equal(a.logits, b.logits)
            assert torch.equal(a.confidences, b.confidences)
