"""Prefix hits whose replay is so long that nothing differs from a cold run (``spec/model.md`` 5.4: L5, L6), and hits of
every length under bounded replay against the plain rule."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from dense_reference import DenseReference, Replay
from torch import Tensor
from v41_core_driver import Computed, CoreDriver, Forced
from v41_driver import Driver, Sequence_
from v41_models import make_driver, shipped
from v41_tiny import SMALL, prompt, tiny_path

from deepinfer_core.assembly.bounded_replay import exact_length
from deepinfer_cpu.ops.cache import gather

WINDOW, BLOCK, KEEP = 8, 8, 20
FOLLOW = prompt(4, seed=50)[1:]
NEAR = {"atol": 1e-4, "rtol": 0.0}


@functools.cache
def path() -> Any:
    return tiny_path(sliding_window=WINDOW, candidate_block_size=4, index_topk=8, max_position_embeddings=256, **SMALL)


@functools.cache
def driver_of(variant: Any = "released") -> Driver:
    return make_driver(path(), variant, block_size=BLOCK, blocks=80, slots=6)


def layers_of(mode: str) -> int:
    config = driver_of().model.config
    return config.num_hidden_layers if mode == "off" else config.n_encoder_layers


def length_of(mode: str) -> int:
    return exact_length(WINDOW, layers_of(mode))


def settings_of(mode: str, *, exact: bool, shorter: int = 0) -> dict[str, Any]:
    rows: dict[str, Any] = {} if mode == "off" else {"replay_mode": mode, "replay_keep": KEEP}
    if exact:
        rows |= {"replay_exact": True, "replay_len": length_of(mode) - shorter}
    return {"prefix_cache": True, **rows}


def pair(shared: int, tail: int, first: int = 7) -> list[Forced]:
    prefix = prompt(shared)
    return [Forced([*prefix, *prompt(n + 1, seed=20 + n)[1:]], FOLLOW) for n in (first, tail)]


def start_by_rule(mode: str, hit: int, length: int, *, exact: bool) -> tuple[int, int]:
    """(start, hit) as ``spec/engine.md`` 2.10 has them."""
    replay = length_of(mode) if exact else WINDOW
    if mode == "off":
        start = hit - replay
    elif exact:
        start = min(hit, length - KEEP) - replay
    else:
        start = min(hit - replay, length - KEEP)
    return (start, hit) if start > 0 else (0, 0)


def warm_and_cold(mode: str, work: list[Forced], *, chunk: int = 4096, **settings: Any) -> tuple[Computed, Computed]:
    driver = driver_of()
    with CoreDriver(driver, chunk=chunk, **settings) as core:
        core.run(work[:1])
        (warm,) = core.run(work[1:])
    with CoreDriver(driver, **{**settings, "prefix_cache": False}) as core:
        (cold,) = core.run(work[1:])
    return warm, cold


def rows_behind(request: Forced, computed: Computed, mode: str) -> Tensor:
    """Rows that must be equal: behind the reused blocks, in the decoder half the kept ones alone."""
    first = computed.hit if mode == "off" else max(computed.hit, len(request.prompt) - KEEP)
    return torch.stack([computed.rows[p] for p in range(first, len(request.tokens))])


@pytest.mark.parametrize("mode", ["off", "compact"])
def test_hits_of_every_length_have_the_bits_of_the_cold_run(mode: str) -> None:
    """L6, and L5 where nothing is skipped: blocks and windows, one less and one more, and around the exact length."""
    replay = length_of(mode)
    edges = {WINDOW - 1, WINDOW, WINDOW + 1, 2 * BLOCK, replay // BLOCK * BLOCK, replay, replay + 1}
    found = 0
    for shared in sorted({*edges, replay + BLOCK, replay + 2 * BLOCK - 1, replay + 2 * BLOCK, replay + 5 * BLOCK}):
        for tail in (1, KEEP - 1, KEEP + 5) if shared > replay else (3,):
            work = pair(shared, tail)
            warm, cold = warm_and_cold(mode, work, chunk=13, **settings_of(mode, exact=True))
            hit = min(shared, len(work[1].prompt) - 1) // BLOCK * BLOCK
            want = start_by_rule(mode, hit, len(work[1].prompt), exact=True)
            assert (warm.start, warm.hit) == want
            cold.start, cold.replayed = warm.start, warm.replayed
            assert torch.equal(rows_behind(work[1], warm, mode), rows_behind(work[1], cold, mode))
            found += warm.start > 0
    assert found > 3


@pytest.mark.parametrize("mode", ["off", "compact"])
def test_receptive_field_is_not_a_row_shorter(mode: str) -> None:
    """A row behind n layers reads n * (window - 1) positions in front of it. The window of the hit has one more, the
    oldest, which that row does not read."""
    work = pair(length_of(mode) + 3 * BLOCK, KEEP + 5)
    for shorter, is_equal in ((1, True), (2, False)):
        warm, cold = warm_and_cold(mode, work, **settings_of(mode, exact=True, shorter=shorter))
        first = warm.hit if mode == "off" else len(work[1].prompt) - KEEP
        assert warm.start > 0
        assert torch.equal(warm.rows[first], cold.rows[first]) == is_equal


def rings(driver: Driver, s: Sequence_, end: int, layers: int) -> Tensor:
    ring = driver.geometry.swa_ring
    rows = s.swa_slot * ring + torch.tensor([p % ring for p in range(end - driver.geometry.window, end)])
    return torch.stack([gather(driver.caches.view("swa", layer), rows) for layer in range(layers)])


@pytest.mark.parametrize("layers", [1, 2, 3, 6])
def test_windows_at_the_hit_are_those_of_the_cold_run_and_with_a_row_less_are_not(layers: int) -> None:
    driver = driver_of()
    hit = 64
    cold = driver.open(prompt(hit))
    driver.prefill(cold, hit, 4096)
    want = rings(driver, cold, hit, layers)
    got = []
    for replayed in (exact_length(WINDOW, layers), exact_length(WINDOW, layers) - 1):
        warm = driver.open(prompt(hit))
        own, warm.block_table = warm.block_table, cold.block_table
        warm.done = warm.swa_valid_start = hit - replayed
        warm.store_from = hit
        driver.prefill(warm, hit, 11)
        got.append(rings(driver, warm, hit, layers))
        warm.block_table = own
        driver.close(warm)
    driver.close(cold)
    assert torch.equal(got[0], want)
    assert torch.equal(got[1][:, 1:], want[:, 1:])
    assert not torch.equal(got[1][-1, 0], want[-1, 0])


def test_shipped_windows_are_exact_behind_125_and_249_positions() -> None:
    """L6 on trained weights: four layers in front of the decoder half, eight in all, windows of 32."""
    driver = shipped("released")
    hit, window = 384, driver.geometry.window
    cold = driver.open(prompt(hit))
    driver.prefill(cold, hit, 4096)
    for layers, replayed in ((4, 125), (8, 249)):
        assert exact_length(window, layers) == replayed
        want = rings(driver, cold, hit, layers)
        for length in (replayed, replayed - 1):
            warm = driver.open(prompt(hit))
            own, warm.block_table = warm.block_table, cold.block_table
            warm.done = warm.swa_valid_start = hit - length
            warm.store_from = hit
            driver.prefill(warm, hit, 4096)
            assert torch.equal(rings(driver, warm, hit, layers), want) == (length == replayed)
            warm.block_table = own
            driver.close(warm)
    driver.close(cold)


@pytest.mark.parametrize(("shared", "tail"), [(7, 3), (8, 30), (9, 30), (16, 25), (40, 5), (47, 18), (48, 30)])
def test_hits_under_bounded_replay_follow_the_plain_rule(shared: int, tail: int) -> None:
    """With the last window run again: a reference cuts windows at the start, and in the decoder half at N - k."""
    first, second = pair(shared, tail)
    oracle, driver = DenseReference(path(), caches=False), driver_of("plain")
    with CoreDriver(driver, chunk=6, **settings_of("compact", exact=False)) as core:
        core.run([first])
        (warm,) = core.run([second])
    length = len(second.prompt)
    start, hit = start_by_rule("compact", min(shared, length - 1) // BLOCK * BLOCK, length, exact=False)
    floor = max(0, length - KEEP)
    replay = Replay(start, hit, oracle.run(second.tokens[:hit])) if start else None
    want = oracle.run(second.tokens, replay=replay, floor=floor).logits
    assert want is not None
    assert (warm.start, warm.hit) == (start, hit)
    kept = range(max(floor, start), len(second.tokens))
    got = driver.model.logits(torch.stack([warm.rows[p] for p in kept]))
    torch.testing.assert_close(got, want[kept.start :], **NEAR)


def test_hit_changes_no_token_of_the_requests_that_it_takes_blocks_from() -> None:
    driver = driver_of()
    first, second = pair(60, 30)
    settings = settings_of("compact", exact=True)
    with CoreDriver(driver, **settings) as core:
        (alone,) = core.run([first])
    with CoreDriver(driver, chunk=9, **settings) as core:
        core.run([first])
        both = core.run([first, second])
        (late,) = core.run([first])
    for computed in (both[0], late):
        assert computed.start > 0
        assert all(torch.equal(computed.rows[p], alone.rows[p]) for p in range(67 - KEEP, len(first.tokens)))


def test_preempted_request_keeps_its_cut_and_its_rows() -> None:
    """Without a prefix cache, and with exact hits on its own blocks: computed again, its rows have the same bits."""
    driver = make_driver(path(), "released", block_size=BLOCK, blocks=14, slots=6)
    work = [Forced(prompt(30, seed=80 + i), prompt(24, seed=90 + i)[1:]) for i in range(2)]
    roomy = driver_of()
    for exact in (False, True):
        settings = settings_of("compact", exact=True) if exact else {"replay_mode": "compact", "replay_keep": KEEP}
        with CoreDriver(roomy, **{**settings, "prefix_cache": False}) as core:
            want = core.run(work)
        with CoreDriver(driver, **settings) as core:
            got = core.run(work)
            assert core.core.stats().preemptions > 0
        for request, a, b in zip(work, got, want, strict=True):
            kept = range(len(request.prompt) - KEEP, len(request.tokens))
            assert all(torch.equal(a.rows[p], b.rows[p]) for p in kept)
