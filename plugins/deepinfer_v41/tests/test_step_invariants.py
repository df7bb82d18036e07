"""How a sequence is cut into steps must not matter (``spec/model.md`` 7.1, 7.2, 7.8, 7.11; random tiny models)."""

from __future__ import annotations

import functools
import itertools
import random

import pytest
import torch
from dense_reference import DenseReference
from torch import Tensor
from v41_models import make_driver
from v41_tiny import prompt, tiny_driver, tiny_path

NEAR = {"atol": 1e-4, "rtol": 0.0}
IDS = prompt(97)


@functools.cache
def one_shot(variant: str) -> Tensor:
    return tiny_driver(tiny_path(), variant).all_logits(IDS)


def test_pipeline_without_quantisers_matches_the_dense_oracle():
    ids = prompt(180, seed=1)
    want = DenseReference(tiny_path(), caches=False).run(ids).logits
    torch.testing.assert_close(tiny_driver(tiny_path(), "plain").all_logits(ids), want, **NEAR)


def test_pipeline_with_cache_formats_stays_near_the_dense_oracle():
    """Cache codes at a midpoint may flip, so only the bulk of the rows is compared closely."""
    ids = prompt(180, seed=1)
    want = DenseReference(tiny_path(), caches=True).run(ids).logits
    distance = (tiny_driver(tiny_path(), "kvq").all_logits(ids) - want).abs().amax(-1)
    assert float(distance.median()) < 1e-4
    assert float(distance.mean()) < 1e-2


@pytest.mark.parametrize("chunk", [1, 2, 3, 16, 37])
def test_any_chunk_size_gives_the_one_shot_rows(chunk):
    """Odd sizes split the groups of ratio 2."""
    driver, ids = tiny_driver(tiny_path()), IDS[:37]
    torch.testing.assert_close(driver.all_logits(ids, chunk=chunk), one_shot("plain")[:37], **NEAR)


@pytest.mark.parametrize("variant", ["plain", "kvq", "released"])
@pytest.mark.parametrize("chunk", [11, 37])
def test_long_prompts_in_chunks_keep_their_rows_with_every_format(variant, chunk):
    got = tiny_driver(tiny_path(), variant).all_logits(IDS, chunk=chunk)
    distance = (got - one_shot(variant)).abs().amax(-1)
    assert float(distance.median()) < 1e-4


@pytest.mark.parametrize("length", range(1, 14))
def test_prefill_and_decode_agree_for_every_length_against_the_ratio(length):
    """Prefill of L tokens, of L-1 and one decode, and (but for the first) decode alone."""
    driver, ids = tiny_driver(tiny_path()), IDS[:length]
    want = driver.all_logits(ids)[-1:]
    for split in {max(1, length - 1), 1}:
        torch.testing.assert_close(driver.all_logits(ids, split=split)[-1:], want, **NEAR)


@pytest.mark.parametrize(("split", "length"), [(1, 24), (16, 24), (17, 24), (31, 44), (80, 97)])
def test_decode_gives_the_rows_of_prefill(split, length):
    got = tiny_driver(tiny_path()).all_logits(IDS[:length], split=split)
    torch.testing.assert_close(got, one_shot("plain")[:length], **NEAR)


@pytest.mark.parametrize("q", [2, 3, 6])
def test_decode_steps_of_several_rows_give_the_rows_of_prefill(q):
    """As when drafts are verified: each row sees its own prefix only."""
    got = tiny_driver(tiny_path()).all_logits(IDS, split=50, q=q)
    torch.testing.assert_close(got, one_shot("plain"), **NEAR)


@pytest.mark.parametrize("variant", ["plain", "kvq", "released"])
@pytest.mark.parametrize("steps", ["prefill", "decode"])
def test_later_tokens_never_change_a_row(variant, steps):
    driver = tiny_driver(tiny_path(), variant)
    cut, ids = 42, IDS[:50]
    other = [*ids[:cut], *prompt(50, seed=9)[cut:]]
    split = None if steps == "prefill" else 36
    got, want = driver.all_logits(other, split=split)[:cut], driver.all_logits(ids, split=split)[:cut]
    if variant == "plain":
        torch.testing.assert_close(got, want, atol=1e-5, rtol=0)
    else:
        assert float((got - want).abs().amax(-1).median()) < 1e-5


@pytest.mark.parametrize(("start", "rolled"), [(40, 1), (41, 6), (63, 2), (63, 5), (127, 6)])
def test_rolled_back_tokens_leave_no_trace(start, rolled):
    """``rolled`` rows run in one step and are taken back; other tokens then decode as if those had never been."""
    driver, ids = tiny_driver(tiny_path()), prompt(150, seed=4)
    wrong = prompt(150, seed=5)
    clean, dirty = driver.open(ids), driver.open([*ids[:start], *wrong[start:]])
    for s in (clean, dirty):
        driver.prefill(s, start, 4096)
    driver.run([(dirty, rolled)], prompt=False)
    dirty.done, dirty.tokens = start, list(ids)
    got = torch.cat(driver.decode(dirty, start + 8))
    want = torch.cat(driver.decode(clean, start + 8))
    driver.close(clean, dirty)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=0)


def test_requests_in_a_batch_do_not_feel_each_other():
    driver = tiny_driver(tiny_path())
    prompts = [prompt(n, seed=n) for n in (1, 2, 3, 50, 90)]
    alone = [driver.all_logits(ids) for ids in prompts]
    sequences = [driver.open(ids) for ids in prompts]
    hidden = driver.run([(s, len(s.tokens)) for s in sequences], prompt=True)
    logits = driver.model.logits(hidden).split([len(p) for p in prompts])
    driver.close(*sequences)
    for got, want in zip(logits, alone, strict=True):
        assert torch.isfinite(got).all()
        torch.testing.assert_close(got, want, **NEAR)


def test_prompts_of_one_two_and_three_tokens_match_the_oracle():
    oracle = DenseReference(tiny_path(), caches=False)
    for n in (1, 2, 3):
        got = tiny_driver(tiny_path()).all_logits(IDS[:n])
        torch.testing.assert_close(got, oracle.run(IDS[:n]).logits, **NEAR)


def test_reused_slots_and_blocks_do_not_show_their_previous_user():
    fresh = tiny_driver(tiny_path(), "released").all_logits([0])
    driver = tiny_driver(tiny_path(), "released")
    long = driver.open(prompt(140, seed=8))
    driver.prefill(long, 140, 4096)
    table, slot = long.block_table, long.swa_slot
    driver.close(long)
    again = driver.open([0])
    driver.blocks.insert(0, again.block_table[0])
    driver.slots.insert(0, again.swa_slot)
    again.block_table, again.swa_slot, again.state_slot = table[:1], slot, slot
    driver.blocks.remove(table[0])
    driver.slots.remove(slot)
    got = driver.model.logits(torch.cat(driver.prefill(again, 1, 1)))
    driver.close(again)
    assert torch.equal(got, fresh)


@pytest.mark.parametrize("block_size", [16, pytest.param(32, marks=pytest.mark.slow)])
def test_sequences_at_different_places_share_steps_without_a_trace(block_size):
    """Prefill and decode steps over whichever sequences come up: odd starts, half groups, partial blocks, any order."""
    draw = random.Random(block_size)
    prompts = [prompt(n, seed=n) for n in (37, 64, 5, 51, 1)]
    driver = make_driver(tiny_path(), "released", block_size=block_size, blocks=80)
    sequences = [driver.open(ids) for ids in prompts]
    rows: list[list[Tensor]] = [[] for _ in prompts]
    for step in itertools.count():
        open_ = [i for i, s in enumerate(sequences) if s.done < len(s.tokens)]
        if not open_:
            break
        is_prompt, chosen = step % 2 == 0, draw.sample(open_, draw.randint(1, len(open_)))
        longest = 11 if is_prompt else 6
        work = [(i, min(draw.randint(1, longest), len(prompts[i]) - sequences[i].done)) for i in chosen]
        work = [(i, q) for i, q in work if is_prompt or sequences[i].done]
        if work:
            hidden = driver.run([(sequences[i], q) for i, q in work], prompt=is_prompt)
            for (i, _), part in zip(work, hidden.split([q for _, q in work]), strict=True):
                rows[i].append(part)
    for ids, parts in zip(prompts, rows, strict=True):
        got = driver.model.logits(torch.cat(parts))
        assert torch.equal(got, tiny_driver(tiny_path(), "released").all_logits(ids))
