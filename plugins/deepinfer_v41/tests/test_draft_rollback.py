"""Drafts that are rejected leave nothing behind (``spec/model.md`` 7.11, 7.24, ``spec/engine.md`` 7.5).

Every number of accepted drafts at every place of a compressed group, two steps in a row, compared bit for bit with a
run that decodes one token a step: logits, and what the draft head proposes next.
"""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from torch import Tensor
from v41_driver import Driver, Proposal, Sequence_
from v41_models import make_driver
from v41_speculation import Run, Spoil, decode_alone, speculate_together
from v41_tiny import SMALL, prompt, tiny_path

K = 5
VARIANTS = ["released", pytest.param("kvq", marks=pytest.mark.slow), pytest.param("plain", marks=pytest.mark.slow)]
PAIRS = list(itertools.product(range(K + 1), repeat=2))


@functools.cache
def drafting(variant: str) -> Driver:
    return make_driver(tiny_path(**SMALL), variant, blocks=90, slots=45, draft_tokens=K)  # type: ignore[arg-type]


@functools.cache
def truth(variant: str, length: int) -> list[int]:
    """Greedy tokens behind a prompt, one a step."""
    driver, ids = drafting(variant), prompt(length, seed=length)
    s = driver.open(ids)
    driver.prefill(s, length - 1, 4096)
    hidden, tokens = driver.run([(s, 1)], prompt=True), []
    for _ in range(3 * (K + 1)):
        tokens.append(int(driver.model.logits(hidden).argmax()))
        s.tokens.append(tokens[-1])
        hidden = driver.run([(s, 1)], prompt=False)
    driver.close(s)
    return tokens


def forcing(tokens: list[int], counts: tuple[int, ...]) -> Spoil:
    """Drafts of which exactly ``counts[step]`` hold; then all wrong."""

    def spoil(step: int, drafts: list[int]) -> list[int]:
        right = counts[step] if step < len(counts) else 0
        at = 1 + sum(1 + count for count in counts[:step]) + max(0, step - len(counts))
        known = [*tokens, *drafts][at : at + len(drafts)]
        return known[:right] + [(token + 1 + step) % 500 for token in known[right:]]

    return spoil


@functools.cache
def alone(variant: str, length: int) -> tuple[Tensor, list[Proposal]]:
    """Logits of one-by-one decoding, and the proposal behind each of its steps."""
    driver, ids, tokens = drafting(variant), prompt(length, seed=length), truth(variant, length)
    s = driver.open([*ids, *tokens])
    driver.prefill(s, length - 1, 4096)
    hidden, proposals = [driver.run([(s, 1)], prompt=True)], [driver.draft([tokens[0]])]
    for following in tokens[1:]:
        hidden.append(driver.run([(s, 1)], prompt=False))
        proposals.append(driver.draft([following], [0]))
    driver.close(s)
    return driver.model.logits(torch.cat(hidden)), proposals


def check(run: Run, counts: tuple[int, ...], variant: str, length: int) -> None:
    logits, proposals = alone(variant, length)
    made = len(run.logits)
    assert run.accepted[: len(counts)] == list(counts)
    assert run.tokens[:made] == truth(variant, length)[:made]
    assert torch.equal(torch.stack(run.logits), logits[:made])
    at = 0
    for step, kept in enumerate([*run.accepted[:-1]]):
        assert run.drafts[step] == proposals[at].tokens[0].tolist()
        assert torch.equal(run.confidences[step], proposals[at].confidences[0])
        at += kept + 1


@pytest.mark.parametrize("length", [31, *(pytest.param(n, marks=pytest.mark.slow) for n in (12, 13, 32))])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_number_of_accepted_drafts_gives_the_bits_of_one_by_one_decoding(variant: str, length: int) -> None:
    """The lengths begin before, at and behind the places where selection begins to leave entries out (16 and 32)."""
    tokens = truth(variant, length)
    ids = prompt(length, seed=length)
    spoils = [forcing(tokens, counts) for counts in PAIRS]
    runs = speculate_together(drafting(variant), [ids] * len(PAIRS), 4, spoils=spoils)
    for run, counts in zip(runs, PAIRS, strict=True):
        check(run, counts, variant, length)


@pytest.mark.slow
@pytest.mark.parametrize("draft_tokens", [1, 2, 8])
def test_any_draft_length_with_any_number_accepted(draft_tokens: int) -> None:
    """A head of a block of 8: the buffers follow the block."""
    path = tiny_path(**SMALL, dspark_block_size=8)
    driver = make_driver(path, "released", blocks=90, slots=45, draft_tokens=draft_tokens)
    ids = prompt(29, seed=29)
    (free,) = speculate_together(driver, [ids], 2 * draft_tokens + 12)
    spoils = [forcing(free.tokens, (kept, draft_tokens - kept)) for kept in range(draft_tokens + 1)]
    runs = speculate_together(driver, [ids] * len(spoils), 4, spoils=spoils)
    for kept, run in enumerate(runs):
        assert run.accepted[:2] == [kept, draft_tokens - kept]
        made = len(run.logits)
        assert run.tokens[:made] == free.tokens[:made]
        assert torch.equal(torch.stack(run.logits), torch.stack(free.logits[:made]))


@pytest.mark.parametrize("chunk", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 8))])
def test_rollback_behind_a_prompt_in_chunks(chunk: int) -> None:
    length, counts = 33, (2, 0, 5, 1)
    spoil = forcing(truth("released", length), counts)
    (run,) = speculate_together(drafting("released"), [prompt(length, seed=length)], 11, spoils=[spoil], chunk=chunk)
    assert run.accepted == list(counts)
    assert run.tokens[:12] == truth("released", length)[:12]


@torch.inference_mode()
def poison(driver: Driver, s: Sequence_) -> None:
    """NaN bytes everywhere but in what a row at position ``s.done`` may read."""
    config, g, c = driver.model.config, driver.geometry, s.done
    live = {p % g.swa_ring for p in range(max(0, c - g.window + 1), c)}
    dead = [slot for slot in range(g.swa_ring) if slot not in live]
    for layer in range(config.n_layers_total):
        # A draft row reads one key more than the backbone's next row: that of the position before the window.
        kept = {(c - g.window) % g.swa_ring} if layer >= config.num_hidden_layers and c >= g.window else set()
        rows = [slot for slot in dead if slot not in kept]
        driver.caches.view("swa", layer).tensor[s.swa_slot, rows] = 0xFF
    driver.caches.view("draft", config.num_hidden_layers).tensor[s.swa_slot] = 0xFF
    for layer in config.kv_source_layer_ids:
        ratio = config.compress_ratios[layer]
        if ratio > 1:
            state = driver.caches.view("state", layer).tensor
            open_group = {p % state.shape[1] for p in range(c - c % ratio, c)}
            state[s.state_slot, [row for row in range(state.shape[1]) if row not in open_group]] = float("nan")
        per_block = g.block_size // ratio
        for e in range(c // ratio, len(s.block_table) * per_block):
            main = driver.caches.view("main", layer).tensor
            main[s.block_table[e // per_block], e % per_block] = 0xFF


@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_that_a_rejected_draft_wrote_is_read(variant: str) -> None:
    driver, length = drafting(variant), 29
    ids, tokens = prompt(length, seed=length), truth(variant, length)
    logits, proposals = alone(variant, length)
    s = driver.open(ids)
    driver.prefill(s, length, 4096)
    at = 0
    for kept in (0, 3, 5, 1):
        poison(driver, s)
        fed = [tokens[at], *tokens[at + 1 : at + 1 + kept], *([7] * (K - kept))]
        s.tokens += fed
        rows = driver.model.logits(driver.run([(s, K + 1)], prompt=False))
        assert torch.equal(rows[: kept + 1], logits[at + 1 : at + 2 + kept])
        start = s.done - (K + 1)
        s.done = start + 1 + kept
        poison(driver, s)
        s.done = start + K + 1
        got = driver.draft([tokens[at + 1 + kept]], [kept])
        s.done = start + 1 + kept
        del s.tokens[s.done :]
        assert torch.equal(got.logits, proposals[at + 1 + kept].logits)
        assert torch.equal(got.confidences, proposals[at + 1 + kept].confidences)
        at += kept + 1
    driver.close(s)


@pytest.mark.parametrize("length", [14, 30, *(pytest.param(n, marks=pytest.mark.slow) for n in (10, 47))])
@pytest.mark.parametrize("variant", VARIANTS)
def test_verify_block_has_the_bits_of_one_by_one_decoding(variant: str, length: int) -> None:
    """Blocks that span the positions at which sparse selection starts, whatever their tokens are."""
    driver = drafting(variant)
    ids = prompt(length + K + 1, seed=7)
    one_by_one = decode_alone(driver, ids[:length], ids[length:])
    s = driver.open(ids)
    driver.prefill(s, length, 4096)
    block = driver.model.logits(driver.run([(s, K + 1)], prompt=False))
    driver.close(s)
    assert torch.equal(block, one_by_one[1:])
