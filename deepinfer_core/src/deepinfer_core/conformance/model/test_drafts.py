"""Models that propose drafts (``interfaces.DraftingModel``, ``spec/sampling.md`` 4.1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from deepinfer_core.conformance.failures import require, require_equal
from deepinfer_core.conformance.model.closeness import require_same_rows
from deepinfer_core.conformance.model.rig import Rig, Text
from deepinfer_core.interfaces import DraftingModel

pytestmark = pytest.mark.level("core")
MOST = 3


@pytest.fixture(scope="module")
def drafting(rig: Any, rig_with: Any) -> Any:
    """The model with its drafter, and the number of drafts of a step."""
    block = getattr(rig.model, "draft_block", 0)
    require(isinstance(block, int) and block >= 0, "draft_block is no number of drafts", got=block)
    if not block:
        pytest.skip("it proposes no drafts")
    count = min(block, MOST)
    return rig_with(draft_tokens=count), count


def propose(rig: Rig, count: int, sampled: list[int], accepted: list[int] | None) -> tuple[Any, Any]:
    """Greedy drafts ``[N, K]`` behind the last step, and the logits ``[N, K, V]`` that they come from."""
    n = len(sampled)
    previous = rig.device(sampled)
    kept = None if accepted is None else rig.device(accepted)
    block = rig.model.draft(rig.hidden, rig.inputs, previous, kept, rig.caches)
    require(hasattr(block, "step"), "draft returned no DraftBlock", got=type(block).__name__)
    tokens, rows = [], []
    for k in range(count):
        answer = block.step(k, previous)
        require(isinstance(answer, tuple) and len(answer) == 2, "step returned no pair (logits, confidence)")
        logits = np.array(rig.backend.to_host(answer[0]), copy=True)
        require_equal(logits.shape, (n, rig.model.vocab_size), "the logits of a draft have a wrong shape", k=k)
        require_equal(str(logits.dtype), "float32", "the logits of a draft are not float32", k=k)
        finite = np.isfinite(logits).any(axis=1).all() and not np.isnan(logits).any()
        require(finite, "the logits of a draft are NaN or have no finite value", k=k)
        if answer[1] is not None:
            chance = np.asarray(rig.backend.to_host(answer[1]))
            require_equal(chance.shape, (n,), "confidences have a wrong shape", k=k)
            require(((chance >= 0) & (chance <= 1)).all(), "a confidence is outside [0, 1]", k=k, got=chance.tolist())
        best = logits.argmax(axis=1)
        previous = rig.device(best.tolist())
        tokens.append(best)
        rows.append(logits)
    return np.stack(tokens, 1), np.stack(rows, 1)


def start(rig: Rig, lengths: list[int], seed: int) -> tuple[list[Text], list[int]]:
    """Prefilled sequences, and the token that each samples."""
    texts = [rig.open(rig.prompt(n, seed=seed + n), room=40) for n in lengths]
    logits = rig.run([(text, len(text.tokens)) for text in texts], prompt=True)
    ends = np.cumsum(lengths) - 1
    return texts, [int(token) for token in logits[ends].argmax(axis=1)]


def verify(rig: Rig, texts: list[Text], sampled: list[int], drafts: Any) -> tuple[list[int], list[int], Any]:
    """The step that verifies: what is accepted of the drafts, the token behind it, and the logits of all rows."""
    q = 1 + drafts.shape[1]
    for text, token, mine in zip(texts, sampled, drafts.tolist(), strict=True):
        text.tokens = [*text.tokens[: text.done], token, *mine]
    logits = rig.run([(text, q) for text in texts], prompt=False).reshape(len(texts), q, -1)
    accepted, following = [], []
    for text, rows in zip(texts, logits, strict=True):
        best, fed = rows.argmax(axis=1).tolist(), text.tokens[text.done - q + 1 :]
        kept = next((j for j, token in enumerate(fed) if token != best[j]), len(fed))
        accepted.append(kept)
        following.append(int(best[kept]))
        text.done += kept + 1 - q
    return accepted, following, logits


def test_model_with_drafts_is_a_drafting_model(drafting: Any) -> None:
    rig, count = drafting
    require(isinstance(rig.model, DraftingModel), "it has draft_block and is no DraftingModel")
    require(count + 1 <= rig.hints.backtrack, "its caches cannot take a block of drafts back", got=rig.hints.backtrack)


def test_drafts_of_prefill_and_decode_steps_are_rows_of_the_vocabulary(drafting: Any) -> None:
    rig, count = drafting
    texts, sampled = start(rig, [1, 5, rig.block_size + 2], seed=10)
    drafts, _ = propose(rig, count, sampled, None)
    for _ in range(3):
        accepted, sampled, _ = verify(rig, texts, sampled, drafts)
        drafts, _ = propose(rig, count, sampled, accepted)
    rig.close(*texts)


def test_drafting_does_not_change_what_the_model_says(drafting: Any) -> None:
    """The tokens and logits of speculation, whatever is accepted, are those of decoding one by one without drafts."""
    rig, count = drafting
    for spoil in (False, True):
        texts, sampled = start(rig, [4, rig.block_size - 2, 2 * rig.block_size + 1], seed=20)
        said = [[token] for token in sampled]
        seen: list[list[Any]] = [[] for _ in texts]
        drafts, _ = propose(rig, count, sampled, None)
        prompts = [list(text.tokens) for text in texts]
        for _ in range(4):
            if spoil:
                drafts = (drafts + np.arange(count)[None]) % rig.vocab_size
            accepted, sampled, logits = verify(rig, texts, sampled, drafts)
            for i, kept in enumerate(accepted):
                said[i] += [*drafts[i, :kept].tolist(), sampled[i]]
                seen[i] += list(logits[i, : kept + 1])
            drafts, _ = propose(rig, count, sampled, accepted)
        rig.close(*texts)
        for i, prompt in enumerate(prompts):
            tokens = [*prompt, *said[i][:-1]]
            want = rig.rows(tokens, split=len(prompt))[len(prompt) :]
            require_same_rows(
                np.stack(seen[i]),
                want,
                rig.backend,
                "with drafts the model says something else",
                request=i,
                spoilt=spoil,
            )


def test_drafts_of_a_request_do_not_depend_on_its_neighbours(drafting: Any) -> None:
    rig, count = drafting
    lengths = [3, rig.block_size + 1, 9]
    texts, sampled = start(rig, lengths, seed=30)
    _, together = propose(rig, count, sampled, None)
    rig.close(*texts)
    for i, length in enumerate(lengths):
        texts, alone = start(rig, [length], seed=30)
        require_equal(alone, sampled[i : i + 1], "alone and in a batch the sampled token differs", request=i)
        _, rows = propose(rig, count, alone, None)
        rig.close(*texts)
        require_same_rows(rows[0], together[i], rig.backend, "alone and in a batch the drafts differ", request=i)


def test_drafting_waits_for_nothing(drafting: Any) -> None:
    rig, count = drafting
    guard = getattr(rig.backend, "no_sync", None)
    if guard is None:
        pytest.skip(f"backend {rig.backend.name} cannot see waits: it has no no_sync")
    texts, sampled = start(rig, [6], seed=40)
    previous = rig.device(sampled)
    with guard():
        block = rig.model.draft(rig.hidden, rig.inputs, previous, None, rig.caches)
        for k in range(count):
            logits, _ = block.step(k, previous)
            previous = logits.argmax(-1)
    rig.close(*texts)
