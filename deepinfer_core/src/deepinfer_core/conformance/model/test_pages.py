"""Cache memory: a step writes what belongs to its requests, and reads nothing else (``spec/model.md`` 4).

Units that nobody owns are full of NaN and of the largest integers, also behind a request that ended.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from deepinfer_core.conformance.failures import require, require_equal
from deepinfer_core.conformance.model.closeness import require_same_rows
from deepinfer_core.conformance.model.making import BLOCKS, SLOTS
from deepinfer_core.conformance.model.rig import NULL

pytestmark = pytest.mark.level("core")


def owned(rig: Any, name: Any, *texts: Any) -> Any:
    """Units of a view that these sequences may write, and the null unit, which anybody may."""
    if rig.pool_of(name) in ("main", "index"):
        return {NULL, *(block for text in texts for block in text.blocks)}
    return {NULL, *(text.swa_slot for text in texts)}


def require_untouched(before: Any, after: Any, rig: Any, texts: Any, what: Any) -> None:
    for name, bytes_before in before.items():
        changed = np.flatnonzero((bytes_before != after[name]).any(axis=1)).tolist()
        others = sorted(set(changed) - owned(rig, name, *texts))
        require(not others, what, cache=name, units=others, owned=sorted(owned(rig, name, *texts)))


@pytest.mark.parametrize("kind", ["prefill", "decode"])
def test_step_writes_units_of_its_own_requests_only(rig: Any, kind: Any) -> None:
    steps = 2 if kind == "prefill" else rig.block_size + 1  # over the end of a block
    length = 2 * rig.block_size + 3
    others = [rig.open(rig.prompt(length, seed=n)) for n in (1, 2)]
    for text in others:
        rig.prefill(text, length)
    mine = [rig.open(rig.prompt(length, seed=n), room=4) for n in (3, 4)]
    if kind == "decode":
        for text in mine:
            rig.prefill(text, length - steps)
    before = rig.contents()
    for _ in range(steps):
        rig.run([(text, length // 2 if kind == "prefill" else 1) for text in mine], prompt=kind == "prefill")
    after = rig.contents()
    rig.close(*others, *mine)
    require_untouched(before, after, rig, mine, f"a {kind} step wrote into units of others")
    if rig.specs:
        wrote = any((before[name] != after[name]).any() for name in before)
        require(wrote, f"a {kind} step wrote nothing at all")


def test_blocks_of_complete_groups_are_not_written_again(rig: Any) -> None:
    """What a decode step far behind finds in the first blocks of its own sequence stays as it is."""
    if not rig.has_blocks:
        pytest.skip("it has no paged caches")
    length = 3 * rig.block_size
    text = rig.open(rig.prompt(length + 6, seed=5))
    rig.prefill(text, length)
    before = rig.contents()
    rig.decode(text, length + 6)
    after = rig.contents()
    rig.close(text)
    for name, bytes_before in before.items():
        if rig.pool_of(name) in ("main", "index"):
            for block in text.blocks[:2]:
                same = (bytes_before[block] == after[name][block]).all()
                require(same, "a decode step wrote into a block that is complete", cache=name, block=block)


def test_units_of_a_request_that_ended_serve_the_next_one(rig: Any) -> None:
    """The same units, as the first one left them: what they hold is stale, and is not read."""
    long_text, short = rig.prompt(3 * rig.block_size + 5, seed=6), rig.prompt(rig.block_size + 3, seed=7)
    want = rig.rows([*short, *short[:4]], split=len(short))
    first = rig.open(long_text)
    rig.prefill(first, len(long_text))
    second = rig.open(short)
    fresh = second.blocks, second.swa_slot
    second.blocks, second.swa_slot = first.blocks[: max(len(second.blocks) + 1, 2)], first.swa_slot
    second.state_slot = first.state_slot
    if rig.pool_units("state"):
        rig.caches.zero("state", [second.state_slot])
    if rig.pool_units("swa") and rig.hints.zero_swa_on_alloc:
        rig.caches.zero("swa", [second.swa_slot])
    second.tokens = [*short, *short[:4]]
    got = [*rig.prefill(second, len(short), 9), *rig.decode(second, len(second.tokens))]
    second.blocks, second.swa_slot = fresh
    rig.close(first, second)
    require_same_rows(np.concatenate(got), want, rig.backend, "what a request left in its units changed the next one")


def test_placeholder_step_writes_into_null_units_only(rig: Any) -> None:
    """A rank without work, and padding of captured graphs: one row over the null units, whose result nobody reads."""
    text = rig.open(rig.prompt(rig.block_size + 3, seed=8), room=8)
    rig.prefill(text, rig.block_size + 3)
    for prompt in (False, True):
        record = placeholder(rig, prompt=prompt)
        before = rig.contents()
        hidden = rig.model.forward(rig.backend.bind_inputs(record), rig.caches)
        after = rig.contents()
        require_equal(len(hidden), 1, "a placeholder step gave another number of rows")
        require_untouched(before, after, rig, [], "a placeholder step wrote into units of a request")
    rig.close(text)


def placeholder(rig: Any, *, prompt: Any) -> Any:
    from deepinfer_contracts import StepKind
    from deepinfer_native import CoreConfig, placeholder_inputs

    hints = rig.hints
    config = CoreConfig(
        num_blocks=BLOCKS,
        num_swa_slots=SLOTS if rig.pool_units("swa") else 0,
        num_state_slots=SLOTS if rig.pool_units("state") else 0,
        max_num_seqs=SLOTS - 1,
        max_num_batched_tokens=rig.max_len,
        max_model_len=rig.max_len,
        vocab_size=rig.model.vocab_size,
        block_size=rig.block_size,
        chunk_align=1,
        window=hints.window,
        backtrack=hints.backtrack,
        swa_ring=hints.swa_ring,
        ratios_sparse=tuple(hints.ratios_sparse),
        ratios_dense=tuple(hints.ratios_dense),
        ngram=hints.ngram,
        ngram_table=hints.ngram_table,
        ngram_pad=hints.ngram_pad,
        inputs=hints.inputs,
    )
    return placeholder_inputs(config, StepKind.PREFILL if prompt else StepKind.DECODE)


def test_over_run_rows_do_not_change_the_rows_before_them(rig: Any) -> None:
    """A request that ended in the step before still has a row in the next: what it runs is thrown away."""
    tokens = [rig.prompt(n, seed=30 + n) for n in (rig.block_size - 2, 9)]
    want = [rig.rows([*mine, *mine[:2]], split=len(mine))[-2:] for mine in tokens]
    ended = rig.open(rig.prompt(rig.block_size + 1, seed=33), room=4)
    texts = [rig.open([*mine, *mine[:2]]) for mine in tokens]
    for text, mine in zip(texts, tokens, strict=True):
        rig.prefill(text, len(mine))
    rig.prefill(ended, len(ended.tokens) - 1)
    ended.tokens += [0, 0]
    got: list[list[Any]] = [[], []]
    for _ in range(2):
        logits = rig.run([(texts[0], 1), (ended, 1), (texts[1], 1)], prompt=False)
        for i, row in ((0, 0), (1, 2)):
            got[i].append(logits[row : row + 1])
    rig.close(ended, *texts)
    for i in range(2):
        require_same_rows(np.concatenate(got[i]), want[i], rig.backend, "the row of an ended request changed another")


def hit_of(rig: Any, shared: Any, tokens: Any, blocks: Any) -> Any:
    """A sequence that takes up behind ``shared`` reused tokens: the last window of them runs again, without stores."""
    text = rig.open(tokens, room=4, shared=blocks[: shared // rig.block_size])
    text.done = text.swa_valid_start = max(0, shared - rig.hints.window)
    text.store_from = shared
    return text


def test_prefix_hit_is_the_same_every_time_and_leaves_the_shared_blocks_alone(rig: Any) -> None:
    """Requests that go on from one beginning: alone, together, in chunks, and over memory full of rubbish."""
    if not rig.hints.prefix_replay or not rig.has_blocks:
        pytest.skip("its hints do not offer prefix_replay")
    shared = -(-max(2 * rig.block_size, rig.hints.window + 1) // rig.block_size) * rig.block_size
    beginning = rig.prompt(shared, seed=40)
    owner = rig.open(beginning, room=4)
    rig.prefill(owner, shared)
    endings = [[*beginning, *rig.prompt(n, seed=40 + n)] for n in (6, 11)]
    before = rig.contents()

    def run(*tokens: Any, chunk: Any = 10**9) -> Any:
        texts = [hit_of(rig, shared, mine, owner.blocks) for mine in tokens]
        parts: list[list[Any]] = [[] for _ in texts]
        while any(text.done < len(text.tokens) for text in texts):
            work = [(i, min(chunk, len(t.tokens) - t.done)) for i, t in enumerate(texts) if t.done < len(t.tokens)]
            logits = rig.run([(texts[i], q) for i, q in work], prompt=True)
            for (i, _), part in zip(work, np.split(logits, np.cumsum([q for _, q in work])[:-1]), strict=True):
                parts[i].append(part)
        rig.close(*texts, keep=owner.blocks)
        return [np.concatenate(part) for part in parts]

    alone = [run(tokens)[0] for tokens in endings]
    for got, want, what in (
        (run(endings[0])[0], alone[0], "a second hit gives other rows than the first"),
        (run(*endings)[1], alone[1], "two hits at once give other rows than one alone"),
        (run(endings[0], chunk=5)[0], alone[0], "a hit in chunks gives other rows"),
    ):
        require_same_rows(got, want, rig.backend, what)
    after = rig.contents()
    rig.close(owner)
    for name, bytes_before in before.items():
        if rig.pool_of(name) in ("main", "index"):
            for block in owner.blocks[: shared // rig.block_size]:
                same = (bytes_before[block] == after[name][block]).all()
                require(same, "a prefix hit wrote into a shared block", cache=name, block=block)
