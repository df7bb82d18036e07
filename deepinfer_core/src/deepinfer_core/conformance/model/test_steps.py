"""How a sequence is cut into steps, and what runs beside it, must not matter (``spec/model.md`` 6, 7).

Rows are compared bit for bit where the backend is batch invariant, else as distributions (``closeness.py``).
"""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pytest

from deepinfer_core.conformance.failures import require
from deepinfer_core.conformance.model.closeness import require_same_rows
from deepinfer_core.conformance.model.rig import Rig

pytestmark = pytest.mark.level("core")


def long(rig: Rig) -> int:
    """A length over several blocks and windows, with room behind it."""
    return min(rig.max_len - 24, max(3 * rig.block_size, 2 * rig.hints.window, 40) + 5)


@pytest.fixture(scope="module")
def one_shot(rig: Any) -> Any:
    """``one_shot(seed)``: (tokens, logits of all rows in one prefill)."""

    @functools.cache
    def make(seed: Any) -> Any:
        tokens = rig.prompt(long(rig), seed=seed)
        return tokens, rig.rows(tokens)

    return make


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 16, "block - 1", "block", "block + 1"])
def test_prefill_in_chunks_is_the_prefill_in_one(rig: Any, one_shot: Any, chunk: Any) -> None:
    tokens, want = one_shot(1)
    size = chunk if isinstance(chunk, int) else rig.block_size + {"block - 1": -1, "block": 0, "block + 1": 1}[chunk]
    length = len(tokens) if size > 3 else min(len(tokens), 2 * rig.block_size + 3, 45)
    got = rig.rows(tokens[:length], chunk=max(size, 1))
    require_same_rows(got, want[:length], rig.backend, "prefill in chunks gives other rows", chunk=size)


@pytest.mark.parametrize("split", [1, 2, "block - 1", "block", "block + 1", "most"])
def test_decode_step_by_step_is_the_prefill_of_the_same_tokens(rig: Any, one_shot: Any, split: Any) -> None:
    tokens, want = one_shot(1)
    places = {"block - 1": -1, "block": 0, "block + 1": 1}
    start = split if isinstance(split, int) else len(tokens) - 12
    if split in places:
        start = rig.block_size + places[split]
    length = min(len(tokens), start + 24)
    got = rig.rows(tokens[:length], split=max(start, 1))
    require_same_rows(got, want[:length], rig.backend, "decode gives other rows than prefill", split=start)


@pytest.mark.parametrize("q", [2, 3, 6])
def test_decode_steps_of_several_rows_are_those_of_one(rig: Any, one_shot: Any, q: Any) -> None:
    """As when drafts are verified: each row sees its own prefix only."""
    if q > rig.hints.backtrack:
        pytest.skip(f"its caches take back {rig.hints.backtrack} positions: no step of {q} rows")
    tokens, want = one_shot(1)
    start = len(tokens) - 4 * q
    got = rig.rows(tokens, split=start, q=q)
    require_same_rows(got, want, rig.backend, "a decode step of several rows gives other rows", rows=q)


@pytest.mark.parametrize("rows", [2, 3, 6])
def test_rows_that_are_taken_back_leave_no_trace(rig: Any, rows: Any) -> None:
    """Drafts that were rejected: other tokens then decode as if those had never been."""
    if rows > rig.hints.backtrack:
        pytest.skip(f"its caches take back {rig.hints.backtrack} positions: no step of {rows} rows")
    for start in (rig.block_size - 1, rig.block_size + 2, long(rig) - 8):
        tokens = rig.prompt(start + 8, seed=start)
        clean, dirty = rig.open(tokens), rig.open([*tokens[:start], *rig.prompt(8, seed=start + 1)])
        for text in (clean, dirty):
            rig.prefill(text, start)
        rig.run([(dirty, rows)], prompt=False)
        dirty.done, dirty.tokens = start, list(tokens)
        got, want = (np.concatenate(rig.decode(text, len(tokens))) for text in (dirty, clean))
        rig.close(clean, dirty)
        require_same_rows(got, want, rig.backend, "rejected rows left a trace", start=start, rows=rows)


def lengths(rig: Any) -> Any:
    return [1, 2, 3, rig.block_size, rig.block_size + 1, long(rig), 7]


@pytest.mark.parametrize("order", ["straight", "reversed"])
def test_batch_is_each_request_alone(rig: Any, order: Any) -> None:
    """In prefill and in decode, whatever the order of the requests."""
    prompts = [rig.prompt(n, seed=50 + n) for n in lengths(rig)]
    follow = rig.prompt(2, seed=49)
    alone = [rig.rows([*tokens, *follow], split=len(tokens)) for tokens in prompts]
    texts = [rig.open([*tokens, *follow]) for tokens in prompts]
    places = list(range(len(texts)))
    if order == "reversed":
        places.reverse()
    got: list[list[Any]] = [[] for _ in texts]
    for prompt in (True, False, False):
        work = [(texts[i], len(prompts[i]) if prompt else 1) for i in places]
        rows = np.split(rig.run(work, prompt=prompt), np.cumsum([q for _, q in work])[:-1])
        for i, part in zip(places, rows, strict=True):
            got[i].append(part)
    rig.close(*texts)
    for i, parts in enumerate(got):
        require_same_rows(
            np.concatenate(parts), alone[i], rig.backend, "a request in a batch gets other rows", request=i, order=order
        )


def test_sequences_at_different_places_share_steps(rig: Any) -> None:
    """Prefill and decode steps over whichever sequences come up: odd starts, part blocks, any order, several rows."""
    draw = random.Random(3)
    prompts = [rig.prompt(n, seed=80 + n) for n in (long(rig) // 2, 5, rig.block_size + 3, 1, 13)]
    texts = [rig.open(tokens) for tokens in prompts]
    rows: list[list[Any]] = [[] for _ in prompts]
    step = 0
    while any(text.done < len(text.tokens) for text in texts):
        step += 1
        prompt = step % 2 == 1
        most = 11 if prompt else min(4, rig.hints.backtrack)
        open_ = [i for i, text in enumerate(texts) if text.done < len(text.tokens) and (prompt or text.done)]
        chosen = draw.sample(open_, draw.randint(1, len(open_))) if open_ else []
        work = [(i, min(draw.randint(1, most), len(prompts[i]) - texts[i].done)) for i in chosen]
        if not work:
            continue
        logits = rig.run([(texts[i], q) for i, q in work], prompt=prompt)
        for (i, _), part in zip(work, np.split(logits, np.cumsum([q for _, q in work])[:-1]), strict=True):
            rows[i].append(part)
    rig.close(*texts)
    for i, tokens in enumerate(prompts):
        got = np.concatenate(rows[i])
        require_same_rows(got, rig.rows(tokens), rig.backend, "in mixed steps a request gets other rows", request=i)


def test_preempted_request_goes_on_as_if_nothing_had_been(rig: Any) -> None:
    """Its memory is given away; it comes back elsewhere and computes prompt and answer again."""
    tokens = rig.prompt(long(rig), seed=9)
    cut = len(tokens) - 10
    want = rig.rows(tokens, split=cut)[cut + 4 :]
    first = rig.open(tokens)
    rig.prefill(first, cut)
    rig.decode(first, cut + 4)
    rig.close(first)
    others = [rig.open(rig.prompt(rig.block_size + 2, seed=n)) for n in (1, 2)]
    for text in others:
        rig.prefill(text, len(text.tokens))
    again = rig.open(tokens)
    require(again.blocks != first.blocks or not first.blocks, "the kit gave the same blocks again")
    rig.prefill(again, cut + 4, 7)
    got = np.concatenate(rig.decode(again, len(tokens)))
    rig.close(again, *others)
    require_same_rows(got, want, rig.backend, "a preempted request goes on otherwise")


@pytest.mark.level("full")
def test_longest_sequence_of_the_run_is_decoded_to_its_end(rig: Any) -> None:
    tokens = rig.prompt(rig.max_len, seed=10)
    want = rig.rows(tokens)
    got = rig.rows(tokens, chunk=rig.block_size + 5, split=rig.max_len - 3)
    require_same_rows(got, want, rig.backend, "at the longest length the rows differ", length=rig.max_len)


@pytest.mark.level("full")
def test_every_split_of_a_short_text_gives_the_same_rows(rig: Any) -> None:
    tokens = rig.prompt(14, seed=11)
    want = rig.rows(tokens)
    for split in range(1, 14):
        require_same_rows(rig.rows(tokens, split=split), want, rig.backend, "a split gives other rows", split=split)
    for length in range(1, 14):
        got = rig.rows(tokens[:length])
        require_same_rows(got, want[:length], rig.backend, "a shorter prompt gives other rows", length=length)
