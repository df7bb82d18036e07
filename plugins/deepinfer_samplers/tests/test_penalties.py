"""Penalties against plain lists of tokens, over steps, slots and drafts (spec/sampling.md 2.2, step 5)."""

import numpy as np
import pytest
import samplers_oracle as oracle
import torch
from samplers_sequence import changed, history, step_inputs, take

from deepinfer_core.errors import ShapeContractError
from deepinfer_samplers.canonical import CanonicalSampler
from deepinfer_samplers.penalties import Penalties
from deepinfer_samplers.reading import read
from deepinfer_samplers.rows import Preparation

V = 24
MIX = {"repetition": 1.5, "presence": 0.75, "frequency": 0.25}


def fields(repetition=1.0, presence=0.0, frequency=0.0):
    return {"repetition_penalty": repetition, "presence_penalty": presence, "frequency_penalty": frequency}


def row(seed=0, n=1, width=V):
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize("penalties", [{"repetition": 2.0}, {"presence": 0.5}, {"frequency": -0.5}, MIX], ids=str)
def test_penalties_of_a_history_equal_the_plain_version(penalties):
    prompt, outputs = [1, 2, 3, 2], [3, 5, 5, 5, 7]
    logits = row()
    got = changed(logits, **fields(**penalties), **history((prompt, outputs)))
    expected = oracle.penalised(logits[0].tolist(), prompt, outputs, **penalties)
    np.testing.assert_allclose(got[0].numpy(), expected, rtol=1e-6)


def test_penalties_count_the_prompt_for_repetition_only():
    logits = torch.ones(1, V)
    got = changed(logits, **fields(repetition=2.0, presence=1.0, frequency=1.0), **history(([4], [])))
    assert got[0, 4] == 0.5
    assert changed(logits, **fields(presence=1.0, frequency=1.0), **history(([4], []))).tolist() == logits.tolist()


def test_penalties_go_on_from_step_to_step_with_the_tokens_that_were_drawn():
    sampler = CanonicalSampler(V)
    prompt, outputs = [1, 2], []
    for step in range(40):
        logits = row(step)
        given = history((prompt, [])) if step == 0 else {}
        out = take(sampler, logits, seed=9, sample_pos=2 + step, **fields(**MIX), **given)
        solo = CanonicalSampler(V)
        again = take(solo, logits, seed=9, sample_pos=2 + step, **fields(**MIX), **history((prompt, outputs)))
        assert out.sampled_ids.tolist() == again.sampled_ids.tolist()
        assert out.sampled_logprob.tobytes() == again.sampled_logprob.tobytes()
        outputs.append(int(out.sampled_ids[0]))
    assert len(set(outputs)) < len(outputs)  # tokens came again, so counts above one mattered


def test_penalties_of_a_long_output_reach_the_end_of_the_list():
    """More tokens than the vocabulary has: the list of seen tokens is full then."""
    sampler = CanonicalSampler(8)
    given, outputs = history(([0], [])), []
    for step in range(30):
        outputs.append(int(take(sampler, row(step, width=8), **fields(frequency=0.5), **given).sampled_ids[0]))
        given = {}
    logits = row(99, width=8)
    got = changed(logits, sampler.preparation, **fields(frequency=0.5))
    np.testing.assert_allclose(got[0], oracle.penalised(logits[0].tolist(), [0], outputs, frequency=0.5), rtol=1e-6)


def test_penalties_forced_tokens_are_counted_as_output():
    sampler = CanonicalSampler(V)
    take(sampler, row(), forced=[6], **fields(frequency=1.0), **history(([1], [])))
    got = changed(torch.zeros(1, V), sampler.preparation, **fields(frequency=1.0))
    assert got[0, 6] == -1.0
    assert got.count_nonzero() == 1


def test_penalties_of_other_requests_stay_apart():
    logits = row(3, n=4)
    given = history(([1], [2, 2]), ([], []), ([3], [4]), ([5, 6], []))
    penalties = fields(repetition=[1.5, 1.0, 1.0, 2.0], presence=[0, 0, 1.0, 0], frequency=[0.5, 0, 0, 0])
    got = changed(logits, **penalties, **given)
    assert torch.equal(got[1], logits[1])
    lists = [([1], [2, 2]), ([], []), ([3], [4]), ([5, 6], [])]
    for i, (prompt, outputs) in enumerate(lists):
        asked = {"repetition": [1.5, 1, 1, 2.0][i], "presence": [0, 0, 1.0, 0][i], "frequency": [0.5, 0, 0, 0][i]}
        np.testing.assert_allclose(got[i], oracle.penalised(logits[i].tolist(), prompt, outputs, **asked), rtol=1e-6)


@pytest.mark.parametrize("penalties", [{"frequency": -2.0}, {"frequency": 2.0}, MIX], ids=str)
def test_penalties_row_of_a_verification_counts_the_drafts_before_it(penalties):
    drafts = [7, 7, 3, 9]
    logits = row(5, n=5)
    rows = {"n": 1, "first_row": [0], "row_count": [5]}
    got = changed(logits, drafts=[*drafts, -1], **rows, **fields(**penalties), **history(([1, 3], [2, 7])))
    for j in range(5):
        expected = oracle.penalised(logits[j].tolist(), [1, 3], [2, 7, *drafts[:j]], **penalties)
        np.testing.assert_allclose(got[j], expected, rtol=1e-6)


def test_penalties_rows_of_two_verifications_in_one_batch_equal_the_solo_runs():
    logits, drafts = row(6, n=5), [4, 5, -1, 4, -1]
    rows = {"first_row": [0, 3], "row_count": [3, 2], "drafts": drafts}
    asked = fields(repetition=[1.2, 1.9], frequency=[0.5, 0.25])
    got = changed(logits, n=2, **rows, **asked, **history(([4], [5]), ([1], [4, 4])))
    first = changed(logits[:3], n=1, first_row=[0], row_count=[3], drafts=drafts[:3],
                    **fields(repetition=1.2, frequency=0.5), **history(([4], [5])))  # fmt: skip
    second = changed(logits[3:], n=1, first_row=[0], row_count=[2], drafts=drafts[3:],
                     **fields(repetition=1.9, frequency=0.25), **history(([1], [4, 4])))  # fmt: skip
    assert torch.equal(got, torch.cat([first, second]))


def test_penalties_accepted_drafts_are_counted_and_rejected_ones_are_not():
    preparation = Preparation(V)
    inputs = step_inputs(1, first_row=[0], row_count=[4], **fields(frequency=1.0), **history(([1], [])))
    step = read(inputs, 4, V, V)
    list(preparation.parts(torch.zeros(4, V), step, torch.tensor([5, 6, 5, -1])))
    preparation.emitted(step, torch.tensor([5, 8, -1, -1], dtype=torch.int32))
    got = changed(torch.zeros(1, V), preparation, **fields(frequency=1.0))
    assert got[0].nonzero().flatten().tolist() == [5, 8]


def test_penalties_slot_that_a_plain_request_takes_forgets_its_counts():
    sampler = CanonicalSampler(V)
    take(sampler, row(n=2), **fields(frequency=[1.0, 1.0]), **history(([1], []), ([2], [])))
    assert len(sampler.preparation.penalties) == 2
    take(sampler, row(n=2), row_slot=[1, 5])
    assert len(sampler.preparation.penalties) == 1
    with pytest.raises(ShapeContractError, match="history_ids: expected the tokens of request 0, whose slot 1"):
        take(sampler, row(), row_slot=[1], **fields(frequency=1.0))


def test_penalties_new_history_starts_the_counts_of_a_slot_again():
    sampler = CanonicalSampler(V)
    take(sampler, row(), **fields(frequency=1.0), **history(([1], [3, 3, 3])))
    got = changed(torch.zeros(1, V), sampler.preparation, **fields(frequency=1.0), **history(([2], [4])))
    assert got[0].nonzero().flatten().tolist() == [4]


def test_penalties_hold_memory_for_the_requests_that_use_them_only():
    penalties = Preparation(V).penalties
    for n in (3, 40):
        inputs = step_inputs(n, **fields(frequency=[1.0] * n), **history(*[([1], [])] * n))
        penalties.begin(read(inputs, n, V, V), torch.device("cpu"))
        assert len(penalties) == n
    assert len(Penalties(V)) == 0
    sampler = CanonicalSampler(V)
    take(sampler, row(n=3))
    assert len(sampler.preparation.penalties) == 0


def test_penalties_move_with_the_row_of_a_request():
    """The slot is the key, not the place in the batch."""
    sampler = CanonicalSampler(V)
    take(sampler, torch.zeros(2, V), row_slot=[7, 2], **fields(frequency=[1.0, 1.0]), **history(([1], [3]), ([1], [4])),
         forced=[5, 6])  # fmt: skip
    got = changed(torch.zeros(2, V), sampler.preparation, row_slot=[2, 7], **fields(frequency=[1.0, 1.0]))
    assert [r.nonzero().flatten().tolist() for r in got] == [[4, 6], [3, 5]]


def test_penalties_extreme_factors_keep_finite_logits_finite():
    logits = torch.tensor([[3e38, -3e38, 1.0, -1.0, -np.inf, 0.0]])
    for repetition in (1e-30, 1e30):
        got = changed(logits, **fields(repetition=repetition, frequency=-2.0), **history(([0, 1, 2, 3, 4, 5], [0, 4])))
        assert got[0].isfinite().tolist() == [True, True, True, True, False, True]
        assert not got.isnan().any()


def test_penalties_token_of_the_prompt_beyond_the_vocabulary_is_harmless():
    got = changed(torch.ones(1, V), Preparation(8), **fields(repetition=2.0), **history(([3, 20], [])))
    assert got[0].tolist() == [1, 1, 1, 0.5, 1, 1, 1, 1]


def test_penalties_without_row_slots_are_refused():
    inputs = step_inputs(1, **fields(frequency=1.0))
    inputs.row_slot = None
    with pytest.raises(ShapeContractError, match="row_slot: expected shape"):
        CanonicalSampler(V).sample(torch.zeros(1, V), inputs)


def test_penalties_on_a_device_wait_for_nothing_and_give_the_same(monkeypatch):
    logits = row(8, n=6)
    rows = {"n": 2, "first_row": [0, 4], "row_count": [4, 2], "drafts": [1, 1, 2, -1, 3, -1]}
    given = {**fields(repetition=[1.5, 1.1], frequency=[0.5, -1.0]), **history(([1], [2]), ([3], [3, 3]))}
    expected = changed(logits, **rows, **given)
    monkeypatch.setattr("deepinfer_samplers.shortcuts.on_host", lambda tensor: False)
    with pytest.importorskip("deepinfer_cpu.sync_guard").NoSync():
        got = changed(logits, **rows, **given)
    assert torch.equal(got, expected)
