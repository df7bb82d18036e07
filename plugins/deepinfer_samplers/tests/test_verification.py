"""Bookkeeping of a step that verifies drafts, against a plain loop; forced tokens, stops, faults, the padding slot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import samplers_oracle as oracle
import torch
from samplers_drafting import Block, drafting_sampler, inputs_of, propose, sampled

from deepinfer_contracts import SamplerOutput
from deepinfer_core.errors import NotSupported, ShapeContractError
from deepinfer_samplers.canonical import CanonicalSampler
from deepinfer_samplers.drafts import DraftPool
from deepinfer_samplers.outcome import settle
from deepinfer_samplers.step_drafts import StepLayout, layout_arrays

V = 12
K = 4


def peaked(tokens: Any) -> torch.Tensor:
    """Logits ``[..., V]`` whose best token is the given one."""
    return torch.nn.functional.one_hot(torch.as_tensor(tokens), V).float() * 9


def plain_settle(counts: list[int], accepted: list[bool]) -> tuple[list[int], list[int], list[bool]]:
    """Accepted drafts and final row of each request, and which rows count."""
    lengths, finals, counted, first = [], [], [False] * len(accepted), 0
    for count in counts:
        a = 0
        while a < count - 1 and accepted[first + a]:
            counted[first + a] = True
            a += 1
        lengths.append(a)
        finals.append(first + a)
        first += count
    return lengths, finals, counted


@pytest.mark.parametrize("seed", range(60))
def test_settle_random_patterns_equal_a_plain_loop(seed: int) -> None:
    draw = np.random.default_rng(seed)
    counts = draw.integers(1, K + 2, draw.integers(1, 9))
    accepted = draw.random(counts.sum()) < draw.choice([0.1, 0.5, 0.9])
    is_draft = draw.random(counts.sum()) < 0.8
    first = np.concatenate([[0], np.cumsum(counts)])
    nowhere = np.zeros(counts.sum(), np.int64)
    layout = StepLayout(*map(torch.from_numpy, layout_arrays(first, nowhere, is_draft, K)))
    out = settle(layout, torch.from_numpy(accepted & is_draft), torch.from_numpy(is_draft))
    lengths, finals, counted = plain_settle(counts.tolist(), (accepted & is_draft).tolist())
    assert out.accepted.tolist() == lengths
    assert out.final.tolist() == finals
    assert out.counted.tolist() == counted
    held = [sum(a > j for a in lengths) for j in range(K)]
    assert out.accepted_per_step.tolist() == held
    tried = [sum(bool(is_draft[first[i] + j]) for i, c in enumerate(counts) if j < c - 1) for j in range(K)]
    assert out.verified_per_step.tolist() == tried


@pytest.mark.parametrize("is_coupled", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("seed", range(5))
def test_every_row_equals_the_oracle(seed: int, temperature: float, is_coupled: bool) -> None:
    """Different lengths in one batch; each row's verdict, token and the request's outcome from plain Python."""
    draw = np.random.default_rng(100 + seed)
    n = 9
    sampler = drafting_sampler(V, K, n, is_coupled=is_coupled)
    given: dict[str, Any] = {"seed": draw.integers(0, 2**63, n), "temperature": temperature}
    positions = draw.integers(1, 1000, n)
    proposals = draw.normal(size=(K, n, V)).astype(np.float32) * 2
    drafts, _ = propose(sampler, Block(proposals), n, sample_pos=positions - 1, **given)
    counts = draw.integers(1, K + 2, n)
    targets = np.concatenate(
        [np.concatenate([proposals[: c - 1, i], draw.normal(size=(1, V))]) for i, c in enumerate(counts)]
    ).astype(np.float32)
    targets += draw.normal(size=targets.shape).astype(np.float32) * 0.3
    out = sampler.sample(torch.from_numpy(targets), inputs_of(n, K, counts, sample_pos=positions, **given))
    row = 0
    for i, count in enumerate(counts.tolist()):
        request, accepted = {"seed": int(given["seed"][i]), "temperature": temperature}, 0
        while True:
            p = None if accepted == count - 1 else proposals[accepted, i].tolist()
            draft = -1 if p is None else int(drafts[i, accepted])
            ok, token = oracle.verify(
                targets[row + accepted].tolist(),
                p,
                draft,
                position=int(positions[i]) + accepted,
                is_coupled=is_coupled,
                **request,
            )
            if not ok:
                break
            assert out.verified_ids[row + accepted] == token
            accepted += 1
        assert (out.accepted[i], out.sampled_ids[i]) == (accepted, token)
        assert (out.verified_ids[row + accepted : row + count] == -1).all()
        assert (out.verified_logprob[row + accepted : row + count] == 0).all()
        row += count


@pytest.mark.parametrize("is_coupled", [False, True])
def test_drafts_use_the_request_parameters_and_the_noise_of_their_position(is_coupled: bool) -> None:
    """The draft of a step that accepted ``a`` drafts is keyed by the position behind its last token."""
    draw = np.random.default_rng(5)
    sampler = drafting_sampler(V, 2, 3, is_coupled=is_coupled)
    logits = draw.normal(size=(2, 3, V)).astype(np.float32) * 3
    inputs = inputs_of(3, 2, 3, seed=[7, 8, 9], sample_pos=[10, 20, 30], top_k=[2, -1, 1], temperature=[1, 0.5, 1])
    block = Block(logits)
    drafts, confidence = sampler.draft(block, inputs, sampled([1, 2, 3], [0, 1, 2]), 2)
    assert confidence is None
    assert block.previous[0] == [1, 2, 3]
    assert block.previous[1] == drafts[:, 0].tolist()
    for i, (seed, base, top_k, temperature) in enumerate([(7, 11, 2, 1.0), (8, 22, -1, 0.5), (9, 33, 1, 1.0)]):
        for k in range(2):
            row = logits[k, i].tolist()
            survivors = oracle.kept(row, temperature, 0.0, 1.0, top_k)
            p = oracle.probabilities(row, temperature, survivors)
            if is_coupled:
                want = oracle.gumbel_best(p, oracle.key(seed, base + k, 3))
            else:
                want = oracle.draw([int(x * 2**31) for x in p], oracle.key(seed, base + k, 4 + k))
            assert drafts[i, k] == want


def test_draft_of_minus_one_is_never_accepted_and_leaves_the_target_untouched() -> None:
    """Logits of the drafter that are not finite give no draft; what follows in the block is of no use either."""
    sampler = drafting_sampler(V, 2, 1)
    logits = torch.zeros(2, 1, V)
    logits[0] = float("nan")
    drafts, confidence = propose(sampler, Block(logits, [[float("nan")], [0.5]]), 1, temperature=0.0)
    assert drafts.tolist() == [[-1, 0]]
    assert confidence.tolist() == [[0.0, 0.5]]  # a number, whatever the drafter said: NaN would refuse the whole step
    out = sampler.sample(peaked([0, 0, 0]), inputs_of(1, 2, 3, temperature=0.0))
    assert (out.accepted.tolist(), out.sampled_ids.tolist()) == ([0], [0])
    assert out.verified_per_step.tolist() == [0, 1]


def test_request_without_drafts_draws_the_token_of_a_step_that_verifies_nothing() -> None:
    """As behind a fork: slot 0 is read. With the noise of a rejection the token would depend on the way to it."""
    logits = torch.randn(3 * 64, V, generator=torch.Generator().manual_seed(3))
    sampler = drafting_sampler(V, 2, 64)
    seeds = np.arange(64)
    inputs = inputs_of(64, 2, 3, slots=np.zeros(64), seed=seeds, sample_pos=np.full(64, 9))
    inputs.draft_write_slot = np.arange(1, 65, dtype=np.int32)
    out = sampler.sample(logits, inputs)
    plain = CanonicalSampler(V).sample(logits[::3], inputs_of(64, 0, seed=seeds, sample_pos=np.full(64, 9)))
    assert out.accepted.tolist() == [0] * 64
    assert out.sampled_ids.tolist() == plain.sampled_ids.tolist()


def test_forced_token_decides_about_the_draft() -> None:
    for temperature in (0.0, 1.0):
        sampler = drafting_sampler(V, 2, 3)
        propose(sampler, Block(peaked([[1, 1, 1], [2, 2, 2]])), 3, temperature=0.0)
        forced = np.array([1, 5, 6, 4, -1, -1, 1, 2, 3], dtype=np.int32)
        inputs = inputs_of(3, 2, 3, temperature=temperature, forced=forced)
        out = sampler.sample(peaked([7] * 9), inputs)
        assert out.accepted.tolist() == [1, 0, 2]
        assert out.sampled_ids.tolist() == [5, 4, 3]
        assert out.verified_ids.tolist() == [1, -1, -1, -1, -1, -1, 1, 2, -1]


def test_stop_token_in_the_block_zeroes_the_confidences_of_its_request_only() -> None:
    sampler = drafting_sampler(V, 2, 4)
    propose(sampler, Block(peaked([[1] * 4, [2] * 4])), 4, temperature=0.0)
    stops = np.array([[9, -1], [1, -1], [3, 9], [-1, -1]], dtype=np.int32)
    inputs = inputs_of(4, 2, 3, temperature=0.0, stop_ids=stops)
    out = sampler.sample(peaked([1, 2, 3] * 4), inputs)
    assert out.accepted.tolist() == [2] * 4
    _, confidence = sampler.draft(Block(peaked([[1] * 4, [2] * 4]), np.full((2, 4), 0.5)), inputs, out, 2)
    assert confidence.tolist() == [[0.5, 0.5], [0, 0], [0, 0], [0.5, 0.5]]


def test_fault_in_a_row_that_counts_ends_the_request_and_in_one_behind_does_not() -> None:
    sampler = drafting_sampler(V, 2, 2)
    propose(sampler, Block(peaked([[1, 1], [2, 2]])), 2, temperature=0.0)
    logits = peaked([1, 2, 3, 8, 2, 3])
    logits[1, 0] = logits[4, 0] = float("nan")
    out = sampler.sample(logits, inputs_of(2, 2, 3, temperature=0.0))
    assert out.row_status.tolist() == [1, 0]
    assert out.accepted.tolist() == [1, 0]
    assert out.sampled_ids.tolist() == [0, 8]


def test_padding_slot_is_never_written() -> None:
    sampler = drafting_sampler(V, 2, 3)
    propose(sampler, Block(peaked([[1, 2, 3], [4, 5, 6]])), 3, slots=[0, 2, 0], temperature=1.0)
    pool: DraftPool = sampler._proposer.pool  # type: ignore[union-attr]
    assert pool.tokens.tolist()[:2] == [-1, -1]
    assert pool.tokens.tolist()[4:6] == [2, 5]
    assert pool.probabilities is not None
    assert float(pool.probabilities[:2].sum()) == 0
    assert float(pool.probabilities[4:6].sum()) == pytest.approx(2)


def test_draft_slot_beyond_the_pool_is_refused() -> None:
    sampler = drafting_sampler(V, 2, 3)
    with pytest.raises(ShapeContractError, match=r"draft slots: expected 0\.\.3, got 4\.\.4"):
        propose(sampler, Block(peaked([[1], [2]])), 1, slots=[4])


def test_confidence_error_compares_with_the_chance_of_acceptance() -> None:
    sampler = drafting_sampler(2, 1, 2)
    p, q = torch.tensor([[0.5, 0.5]] * 2).log(), torch.tensor([[0.8, 0.2], [0.5, 0.5]] * 2).log()
    propose(sampler, Block(p[None], [[0.9, 0.1]]), 2)
    out = sampler.sample(q, inputs_of(2, 1, 2))
    assert out.confidence_error == pytest.approx(abs(0.7 - 0.9) + abs(0.7 - 0.1), abs=1e-3)
    drafted = out.draft_logprob.tolist()
    assert drafted == pytest.approx([np.log(0.5), 0, np.log(0.5), 0])


@pytest.mark.parametrize("is_coupled", [False, True])
def test_request_is_the_same_alone_and_in_any_batch(is_coupled: bool) -> None:
    draw = np.random.default_rng(8)
    n = 7
    proposals, targets = draw.normal(size=(2, n, V)), draw.normal(size=(n, 3, V)).astype(np.float32)
    seeds, temperature = np.arange(n) + 50, draw.choice([0.0, 0.5, 1.0], n)

    def run(order: list[int]) -> dict[int, Any]:
        sampler = drafting_sampler(V, 2, n, is_coupled=is_coupled)
        given = {"seed": seeds[order], "temperature": temperature[order], "sample_pos": np.array(order) + 3}
        drafts, _ = propose(sampler, Block(proposals[:, order]), len(order), **given)
        given["sample_pos"] = given["sample_pos"] + 1
        out = sampler.sample(torch.from_numpy(targets[order].reshape(-1, V)), inputs_of(len(order), 2, 3, **given))
        return {
            request: (drafts[i].tolist(), int(out.accepted[i]), int(out.sampled_ids[i]), float(out.sampled_logprob[i]))
            for i, request in enumerate(order)
        }

    whole = run(list(range(n)))
    assert run(list(range(n))[::-1]) == whole
    for i in range(n):
        assert run([i]) == {i: whole[i]}


def test_coupled_tokens_do_not_depend_on_drafts() -> None:
    """Rows that verify, rows that do not, and a sampler without drafts draw the same tokens."""
    draw = np.random.default_rng(11)
    n = 64
    targets = torch.from_numpy(draw.normal(size=(n, V)).astype(np.float32))
    given = {"seed": np.arange(n), "sample_pos": np.arange(n) + 1, "top_p": 0.9}
    plain = CanonicalSampler(V, is_coupled=True).sample(targets, inputs_of(n, 0, **given))
    sampler = drafting_sampler(V, 1, n, is_coupled=True)
    propose(sampler, Block(draw.normal(size=(1, n, V))), n, **{**given, "sample_pos": given["sample_pos"] - 1})
    both = targets.repeat_interleave(2, 0)
    out = sampler.sample(both, inputs_of(n, 1, 2, **given))
    first = np.where(out.accepted > 0, out.verified_ids[::2], out.sampled_ids)
    assert first.tolist() == plain.sampled_ids.tolist()
    assert 0 < out.accepted.sum() < n


def test_drafts_without_a_pool_are_refused_by_name() -> None:
    with pytest.raises(NotSupported, match="cannot verify drafts"):
        CanonicalSampler(V).sample(torch.zeros(2, V), inputs_of(1, 1, 2))
    with pytest.raises(NotSupported, match="was made for 2 drafts, and is to draw 1"):
        drafting_sampler(V, 2, 1).draft(Block(torch.zeros(1, 1, V)), inputs_of(1, 1), SamplerOutput(), 1)
