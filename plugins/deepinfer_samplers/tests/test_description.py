"""Log-probabilities, alternatives and the audit statistic against a loop (spec/sampling.md 1.2)."""

import math

import numpy as np
import pytest
import samplers_oracle as oracle
import torch
from samplers_sequence import take
from samplers_step import logits_of

from deepinfer_samplers.canonical import CanonicalSampler
from deepinfer_samplers.description import model_logprobs

V = 50


def row(seed=0, n=1, width=V):
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed)) * 3


def plain_top(logits, temperature, survivors, count):
    p = oracle.probabilities(logits, temperature, survivors)
    best = [token for token in oracle.ranking(logits) if token in survivors][:count]
    return best, [math.log(p[token]) for token in best]


@pytest.mark.parametrize(
    "filters", [{}, {"temperature": 0.7}, {"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.1, "temperature": 1.5}], ids=str
)
@pytest.mark.parametrize("levels", [False, True], ids=["distinct", "ties"])
def test_alternatives_are_the_best_survivors_in_rank_order(filters, levels):
    logits = row(n=4).round() if levels else row(n=4)
    out = take(CanonicalSampler(V), logits, max_top_logprobs=6, seed=[1, 2, 3, 4], **filters)
    values = {"temperature": 1.0, "min_p": 0.0, "top_p": 1.0, "top_k": -1, **filters}
    for i in range(4):
        line = logits[i].tolist()
        ids, logprobs = plain_top(line, values["temperature"], oracle.kept(line, **values), 6)
        assert out.top_ids[i].tolist() == ids + [-1] * (6 - len(ids))
        np.testing.assert_allclose(out.top_logprobs[i, : len(ids)], logprobs, rtol=1e-5, atol=1e-5)
        assert (out.top_logprobs[i, len(ids) :] == 0).all()
        token = out.sampled_ids[i]
        if token in ids:
            assert out.top_logprobs[i, ids.index(token)].tobytes() == out.sampled_logprob[i].tobytes()


def test_alternatives_are_as_many_as_each_request_wants():
    out = take(CanonicalSampler(V), row(n=4), max_top_logprobs=5, top_logprobs=[0, 1, 5, 3])
    assert [(line >= 0).sum() for line in out.top_ids] == [0, 1, 5, 3]
    assert (out.top_ids.dtype, out.top_logprobs.dtype, out.top_ids.shape) == (np.int32, np.float32, (4, 5))


def test_alternatives_of_a_greedy_request_are_its_token_alone():
    out = take(CanonicalSampler(V), row(n=2), max_top_logprobs=3, temperature=[0.0, 1.0])
    assert out.top_ids[0].tolist() == [int(row(n=2)[0].argmax()), -1, -1]
    assert out.top_logprobs[0].tolist() == [0.0, 0.0, 0.0]
    assert (out.top_ids[1] >= 0).all()


def test_alternatives_more_than_the_vocabulary_fill_up_with_none():
    out = take(CanonicalSampler(3), [[1.0, 3.0, 2.0]], max_top_logprobs=1000)
    assert out.top_ids.shape == (1, 1000)
    assert out.top_ids[0, :4].tolist() == [1, 2, 0, -1]


def test_alternatives_absent_unless_asked_for():
    out = take(CanonicalSampler(V), row())
    assert (out.top_ids, out.top_logprobs, out.sum_smaller) == (None, None, None)


def test_alternatives_under_a_mask_of_one_token_list_this_one_only():
    masked = {"grammar_mask": [np.array([oracle.words([7], 2)], np.int32)], "grammar_rows": [np.array([0], np.int32)]}
    for temperature in (0.0, 1.0):
        out = take(CanonicalSampler(V), row(), max_top_logprobs=5, temperature=temperature, **masked)
        assert out.top_ids[0].tolist() == [7, -1, -1, -1, -1]
        assert (out.top_logprobs[0] == 0).all()
        assert out.sampled_logprob.tolist() == [0.0]


# --- the model's own distribution -----------------------------------------------------------------------------------


def test_raw_logprobs_are_those_of_the_model_before_any_step():
    logits = row(n=3)
    given = {"temperature": [0.0, 0.5, 2.0], "top_k": [-1, 2, 4], "top_p": [1.0, 0.5, 1.0]}
    given["bias"], given["bias_value"] = np.array([[1, 4]], np.int32), np.array([50.0], np.float32)
    out = take(CanonicalSampler(V), logits, logprobs_raw=[1, 1, 1], max_top_logprobs=4, **given)
    expected = torch.log_softmax(logits.double(), -1)
    assert out.sampled_ids[1] == 4
    for i in range(3):
        np.testing.assert_allclose(out.sampled_logprob[i], expected[i, out.sampled_ids[i]], rtol=1e-5, atol=1e-5)
        assert out.top_ids[i].tolist() == oracle.ranking(logits[i].tolist())[:4]
        np.testing.assert_allclose(out.top_logprobs[i], expected[i, out.top_ids[i]], rtol=1e-5, atol=1e-5)


def test_raw_and_processed_requests_share_a_batch():
    logits = row(n=4)
    given = {"temperature": [0.5, 0.5, 0.0, 0.0], "seed": [1, 1, 2, 2], "max_top_logprobs": 3}
    both = take(CanonicalSampler(V), logits, logprobs_raw=[0, 1, 0, 1], **given)
    for i in range(4):
        alone = {name: value if name == "max_top_logprobs" else [value[i]] for name, value in given.items()}
        solo = take(CanonicalSampler(V), logits[i : i + 1], logprobs_raw=[i % 2], **alone)
        assert both.sampled_logprob[i].tobytes() == solo.sampled_logprob[0].tobytes()
        assert both.top_ids[i].tolist() == solo.top_ids[0].tolist()
        assert both.top_logprobs[i].tobytes() == solo.top_logprobs[0].tobytes()


def test_raw_logprobs_do_not_change_the_token():
    logits, given = row(n=8), {"temperature": 0.8, "top_p": 0.9, "seed": np.arange(8)}
    raw = take(CanonicalSampler(V), logits, logprobs_raw=[1] * 8, **given)
    assert raw.sampled_ids.tolist() == take(CanonicalSampler(V), logits, **given).sampled_ids.tolist()


# --- prompt ----------------------------------------------------------------------------------------------------------


def test_prompt_logprobs_are_those_of_the_targets():
    logits = row(n=40)
    targets = np.arange(40, dtype=np.int32)
    got = CanonicalSampler(V).prompt_logprobs(logits, targets)
    expected = torch.log_softmax(logits.double(), -1)[torch.arange(40), torch.arange(40)]
    assert (got.dtype, got.shape) == (np.float32, (40,))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    alone = [CanonicalSampler(V).prompt_logprobs(logits[i : i + 1], targets[i : i + 1])[0] for i in range(40)]
    assert np.array(alone, np.float32).tobytes() == got.tobytes()


def test_prompt_logprobs_leave_out_head_rows_beyond_the_vocabulary_and_report_broken_rows():
    logits = torch.full((3, V + 8), 100.0)
    logits[:, :V] = row(n=3)
    logits[1, 4] = np.nan
    sampler = CanonicalSampler(V)
    got = sampler.prompt_logprobs(logits, np.array([1, 2, 3], np.int32))
    whole = sampler.prompt_logprobs(logits[:, :V], np.array([1, 2, 3], np.int32))
    assert got.tobytes() == whole.tobytes()
    assert np.isnan(got).tolist() == [False, True, False]


def test_prompt_logprobs_of_a_token_beyond_the_vocabulary_are_minus_infinity():
    got = CanonicalSampler(V).prompt_logprobs(torch.zeros(2, V + 8), np.array([V + 3, 0], np.int32))
    assert np.isneginf(got).tolist() == [True, False]


def test_prompt_logprobs_of_no_row_are_empty():
    assert CanonicalSampler(V).prompt_logprobs(torch.zeros(0, V), np.zeros(0, np.int32)).shape == (0,)


def test_model_logprobs_extreme_logits_give_no_nan():
    logits = torch.tensor([[3e38, -3e38, 0.0], [-3e38, -3.1e38, -np.inf]])
    assert model_logprobs(logits, torch.tensor([0, 0])).tolist() == [0.0, 0.0]


# --- the audit statistic -----------------------------------------------------------------------------------------


def test_sum_smaller_is_the_mass_of_less_likely_tokens_and_of_ties_up_to_the_token():
    sampler = CanonicalSampler(4, sum_smaller=True)
    rows = [logits_of(0.5, 0.125, 0.25, 0.125)] * 4
    out = take(sampler, rows, forced=[0, 1, 2, 3])
    np.testing.assert_allclose(out.sum_smaller, [1.0, 0.125, 0.5, 0.25], atol=1e-6)


def test_sum_smaller_of_greedy_filtered_and_failed_rows():
    sampler = CanonicalSampler(4, sum_smaller=True)
    rows = [logits_of(0.5, 0.25, 0.125, 0.125)] * 3 + [[np.nan] * 4]
    out = take(sampler, rows, temperature=[0.0, 0.0, 1.0, 1.0], top_k=[-1, -1, 2, -1], forced=[-1, 1, 3, -1])
    assert out.sum_smaller.tolist() == [1.0, 0.0, 0.0, 0.0]


def test_sum_smaller_of_many_draws_is_uniform():
    """The statistic is a randomised probability integral transform: with a random share of each atom it is uniform."""
    stats = pytest.importorskip("scipy.stats")
    n, p = 20_000, (0.31, 0.22, 0.16, 0.12, 0.08, 0.06, 0.04, 0.01)
    sampler = CanonicalSampler(8, sum_smaller=True)
    out = take(sampler, torch.tensor([logits_of(*p)]).expand(n, 8), seed=np.arange(n))
    inside = np.random.default_rng(5).random(n)
    probability = np.exp(out.sampled_logprob.astype(np.float64))
    assert stats.kstest(out.sum_smaller - inside * probability, "uniform").pvalue > 1e-3


def test_description_of_failed_rows_is_empty():
    out = take(CanonicalSampler(V, sum_smaller=True), torch.full((1, V), np.nan), max_top_logprobs=3, logprobs_raw=[1])
    assert np.isneginf(out.sampled_logprob).all()
    assert out.top_ids.tolist() == [[-1, -1, -1]]
    assert out.top_logprobs.tolist() == [[0.0, 0.0, 0.0]]


def test_description_on_a_device_waits_for_nothing_and_is_the_same(monkeypatch):
    logits = row(n=6).round()
    logits[2, 3] = np.nan
    given = {
        "temperature": [0.0, 1.0, 1.0, 0.5, 0.0, 2.0],
        "top_p": [1, 0.9, 1, 1, 1, 0.5],
        "max_top_logprobs": 7,
        "top_logprobs": [7, 2, 3, 0, 4, 7],
        "logprobs_raw": [0, 0, 1, 1, 1, 1],
    }
    expected = take(CanonicalSampler(V, sum_smaller=True), logits, **given)
    monkeypatch.setattr("deepinfer_samplers.shortcuts.on_host", lambda tensor: False)
    with pytest.importorskip("deepinfer_cpu.sync_guard").NoSync():
        out = take(CanonicalSampler(V, sum_smaller=True), logits, **given)
    for name in ("sampled_ids", "sampled_logprob", "top_ids", "top_logprobs", "sum_smaller"):
        assert getattr(out, name).numpy().tobytes() == getattr(expected, name).tobytes(), name


def test_description_of_no_request_is_empty():
    out = take(CanonicalSampler(V, sum_smaller=True), torch.zeros(0, V), max_top_logprobs=3)
    assert (out.top_ids.shape, out.top_logprobs.shape, out.sum_smaller.shape) == ((0, 3), (0, 3), (0,))
