"""A prefix hit runs its last window again and nothing else (``spec/model.md`` 5.2, invariants 36 to 38).

Compared with a plain run over the whole sequence in which no window reaches below the start of the replay, and in which
the compressed entries of the reused positions are those of a cold run.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from dense_reference import DenseReference, Replay
from torch import Tensor
from v41_core_driver import CoreDriver, Forced
from v41_driver import Driver
from v41_models import make_driver
from v41_tiny import prompt, tiny_path

WINDOW = 8
NEAR = {"atol": 1e-4, "rtol": 0.0}
FOLLOW = prompt(6, seed=50)[1:]


@functools.cache
def path_of(block: int) -> Any:
    return tiny_path(sliding_window=WINDOW, candidate_block_size=block // 2, index_topk=8, max_position_embeddings=256)


@functools.cache
def driver_of(block: int, variant: Any = "plain") -> Driver:
    return make_driver(path_of(block), variant, block_size=block, blocks=80, slots=6)


@functools.cache
def oracle_of(block: int) -> DenseReference:
    return DenseReference(path_of(block), caches=False)


@contextmanager
def caching(driver: Driver, chunk: int = 4096, **settings: Any) -> Iterator[CoreDriver]:
    settings = {"prefix_cache": True, **settings}
    with CoreDriver(driver, chunk=chunk, **settings) as core:
        yield core


def expected(block: int, request: Forced, start: int, hit: int) -> Tensor:
    """Logits of the positions from ``start`` on, by the plain rule."""
    oracle = oracle_of(block)
    if start == 0:
        logits = oracle.run(request.tokens).logits
    else:
        cold = oracle.run(request.tokens[:hit])
        logits = oracle.run(request.tokens, replay=Replay(start, hit, cold)).logits
    if logits is None:
        raise AssertionError("the oracle has no logits")
    return logits[start:]


def plain_hit(block: int, shared: int, length: int) -> tuple[int, int]:
    """(start, hit) of the rule, for a prompt whose first ``shared`` tokens were computed before."""
    hit = min(shared, length - 1) // block * block
    start = hit - WINDOW
    return (start, hit) if start > 0 else (0, 0)


def fork(shared: int, tails: Sequence[int]) -> list[Forced]:
    """Requests with one prefix and different tails of those lengths."""
    prefix = prompt(shared)
    return [Forced([*prefix, *prompt(n + 1, seed=20 + i)[1:]], FOLLOW) for i, n in enumerate(tails)]


def block_bytes(driver: Driver, blocks: Sequence[int]) -> Tensor:
    return driver.caches._matrix("main")[list(blocks)].clone()


@pytest.mark.parametrize("shared", [7, 8, 9, 12, 24])
@pytest.mark.parametrize(
    ("block", "chunk"),
    [(8, 3), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((8, 1), (8, 8), (4, 3), (4, 4096)))],
)
def test_hit_of_a_shared_prefix_gives_the_rows_of_the_plain_rule(block: int, shared: int, chunk: int) -> None:
    driver = driver_of(block)
    first, second = fork(shared, [7, 10])
    with caching(driver, chunk) as core:
        (cold,) = core.run([first])
        before = block_bytes(driver, cold.blocks)
        (warm,) = core.run([second])
    start, hit = plain_hit(block, shared, len(second.prompt))
    assert (cold.start, cold.hit) == (0, 0)
    assert (warm.start, warm.hit) == (start, hit)
    assert min(warm.rows) == start
    torch.testing.assert_close(core.logits(second, warm), expected(block, second, start, hit), **NEAR)
    assert warm.blocks[: hit // block] == cold.blocks[: hit // block]
    assert torch.equal(block_bytes(driver, cold.blocks)[: hit // block], before[: hit // block])


@pytest.mark.parametrize("variant", ["released", pytest.param("kvq", marks=pytest.mark.slow)])
def test_hit_has_the_bits_of_a_run_with_the_windows_cut_by_hand(variant: str) -> None:
    """In the cache formats, too, where the oracle's rounding may fall elsewhere."""
    block = 8
    first, second = fork(28, [7, 10])
    driver = driver_of(block, variant)
    with caching(driver, 3) as core:
        core.run([first])
        (warm,) = core.run([second])
        got = core.logits(second, warm)
    by_hand = driver_of(block, variant)
    cold = by_hand.open(first.tokens)
    by_hand.prefill(cold, len(first.prompt), 5)
    cut = by_hand.open(second.tokens)
    own = cut.block_table
    cut.block_table = [*cold.block_table[:3], *own[3:]]
    cut.done = cut.swa_valid_start = 16
    cut.store_from = 24
    hidden = by_hand.prefill(cut, len(second.prompt), 4096) + by_hand.decode(cut, len(second.tokens))
    cut.block_table = own
    by_hand.close(cold, cut)
    assert (warm.start, warm.hit) == (16, 24)
    assert torch.equal(got, by_hand.model.logits(torch.cat(hidden)))


@pytest.mark.parametrize("variant", ["released", pytest.param("kvq", marks=pytest.mark.slow)])
def test_prefix_too_short_to_skip_anything_is_the_cold_run(variant: str) -> None:
    driver = driver_of(8, variant)
    first, second = fork(15, [7, 10])
    with caching(driver) as core:
        core.run([first])
        (warm,) = core.run([second])
    with CoreDriver(driver) as core:
        (cold,) = core.run([second])
        assert warm.start == 0
        assert torch.equal(core.logits(second, warm), core.logits(second, cold))


@pytest.mark.parametrize("variant", ["released", pytest.param("plain", marks=pytest.mark.slow)])
def test_equal_prompts_after_the_first_are_equal_bit_for_bit(variant: str) -> None:
    driver = driver_of(8, variant)
    request = Forced(prompt(46), FOLLOW)
    with caching(driver) as core:
        runs = [core.run([request])[0] for _ in range(4)]
        assert [run.start for run in runs] == [0, 32, 32, 32]
        logits = [core.logits(request, run) for run in runs[1:]]
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])


def test_requests_that_go_on_from_one_prefix_do_not_change_it() -> None:
    """Two at once from a prefix that ends inside a block, and a third one later."""
    block = 8
    driver = driver_of(block)
    first, *others = fork(28, [3, 9, 14, 5])
    with caching(driver) as core:
        (cold,) = core.run([first])
        kept = len(first.tokens) // block
        before = block_bytes(driver, cold.blocks[:kept])
        both = core.run(others[:2])
        after = block_bytes(driver, cold.blocks[:kept])
        (late,) = core.run(others[2:])
    for request, computed in zip(others, [*both, late], strict=True):
        assert (computed.start, computed.hit) == (16, 24)
        torch.testing.assert_close(core.logits(request, computed), expected(block, request, 16, 24), **NEAR)
    assert torch.equal(before, after)
    assert torch.equal(before, block_bytes(driver, cold.blocks[:kept]))


@pytest.mark.parametrize("shared", [16, 24])
def test_ngram_ids_after_a_hit_are_those_of_the_cold_run(shared: int) -> None:
    driver = driver_of(8)
    first, second = fork(shared, [5, 9])
    with caching(driver, 5) as core:
        core.run([first])
        (warm,) = core.run([second])
    with CoreDriver(driver) as core:
        (cold,) = core.run([second])
    assert warm.start == shared - WINDOW
    assert warm.ngrams == {position: ids for position, ids in cold.ngrams.items() if position >= warm.start}


@pytest.mark.parametrize("variant", ["released", pytest.param("plain", marks=pytest.mark.slow)])
def test_poisoned_units_change_nothing(variant: str) -> None:
    """Whatever a request gets, ring, state or block, is full of NaN bytes when it comes (invariant 37)."""
    block = 8
    driver = make_driver(path_of(block), variant, block_size=block, blocks=80, slots=6)
    work = [*fork(28, [3, 9, 14]), Forced([5], FOLLOW), Forced(prompt(11, seed=70), FOLLOW)]

    def run(core: CoreDriver, *, poison: bool) -> list[Tensor]:
        out = []
        registered: set[int] = set()
        for request in work:
            if poison:
                for pool in ("swa", "state"):
                    driver.caches._matrix(pool)[1:] = 0xFF
                loose = [unit for unit in range(1, 80) if unit not in registered]
                driver.caches._matrix("main")[loose] = 0xFF
            (computed,) = core.run([request])
            registered.update(computed.blocks[: len(request.tokens) // block])
            out.append(core.logits(request, computed))
        return out

    with caching(driver) as core:
        clean = run(core, poison=False)
    with caching(driver) as core:
        dirty = run(core, poison=True)
        stats = core.core.stats()
    assert stats.prefix_hit_tokens > 0
    assert all(torch.equal(a, b) for a, b in zip(clean, dirty, strict=True))


def test_preempted_request_that_hits_its_own_blocks_follows_the_rule() -> None:
    """Few blocks, so that requests are preempted, come back and find what they had computed."""
    block = 8
    driver = make_driver(path_of(block), "plain", block_size=block, blocks=12, slots=6)
    work = [Forced(prompt(25, seed=80 + i), prompt(24, seed=90 + i)[1:]) for i in range(2)]
    with caching(driver) as core:
        computed = core.run(work)
        stats = core.core.stats()
    assert stats.preemptions > 0
    found = 0
    for request, one in zip(work, computed, strict=True):
        if one.admissions > 2:
            continue  # its blocks are of several lives
        found += one.start > 0
        want = expected(block, request, one.start, one.hit)
        torch.testing.assert_close(core.logits(request, one), want, **NEAR)
    assert found > 0
