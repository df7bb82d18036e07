"""Row samplers and logits filters of single requests: their place in the order, and what they may not do."""

import math

import numpy as np
import pytest
import samplers_oracle as oracle
import torch
from samplers_sequence import history, step_inputs
from samplers_step import logits_of

from deepinfer_core.requests.request_parts import RequestParts
from deepinfer_samplers.canonical import CanonicalSampler

V = 40


class MinP:
    """The row sampler of the plugin guide."""

    def __init__(self, min_p):
        self.min_p = min_p
        self.seen = []

    def sample(self, logits, draws):
        self.seen.append(logits.copy())
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p[p < self.min_p] = 0.0
        p /= p.sum(axis=1, keepdims=True)
        return [draw(row) for draw, row in zip(draws, p, strict=True)]


class Returns:
    """A row sampler that returns what it was made with, or raises it."""

    def __init__(self, result):
        self.result = result

    def sample(self, logits, draws):
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


class Apply:
    """A filter around a function of (logits, positions)."""

    def __init__(self, change):
        self.change = change
        self.seen = []

    def apply(self, logits, positions):
        self.seen.append((logits.copy(), list(positions)))
        return self.change(logits, positions)


def row(seed=0, n=1):
    return torch.randn(n, V, generator=torch.Generator().manual_seed(seed)) * 3


def with_sampler(sampler):
    return RequestParts(sampler=("named", sampler))


def with_filters(*changes):
    return RequestParts(filters=tuple((f"f{i}", change) for i, change in enumerate(changes)))


def run(logits, parts, sampler=None, **given):
    tensor = torch.as_tensor(logits, dtype=torch.float32)
    inputs = step_inputs(given.pop("n", len(tensor)), **given)
    return (sampler or CanonicalSampler(tensor.shape[1])).sample_with(tensor, inputs, parts)


# --- row samplers ------------------------------------------------------------------------------------------------


def test_row_sampler_of_the_guide_equals_the_min_p_of_the_sampler():
    logits = row(n=64)
    seeds = np.arange(64)
    named = MinP(0.1)
    out = run(logits, {i: with_sampler(named) for i in range(64)}, temperature=0.8, seed=seeds)
    own = CanonicalSampler(V).sample(logits, step_inputs(64, temperature=0.8, min_p=0.1, seed=seeds))
    assert (out.sampled_ids == own.sampled_ids).sum() >= 63  # probabilities may differ in their last bit
    assert out.row_status.tolist() == [0] * 64


def test_row_sampler_gets_logits_over_temperature_with_masks_applied():
    named, logits = MinP(0.1), row()
    run(logits, {0: with_sampler(named)}, temperature=0.5, eos_suppress=np.array([[0, 3]], np.int32))
    expected = logits[0].numpy() / np.float32(0.5)
    expected[3] = -math.inf
    np.testing.assert_array_equal(named.seen[0][0], expected)
    assert named.seen[0].dtype == np.float32


def test_row_sampler_changes_only_the_requests_that_name_it():
    logits, given = row(n=6), {"seed": np.arange(6), "temperature": [1.0, 0.0, 1.0, 0.5, 1.0, 1.0]}
    plain = CanonicalSampler(V).sample(logits, step_inputs(6, **given))
    out = run(logits, {2: with_sampler(Returns([7])), 5: with_sampler(Returns([9]))}, **given)
    assert out.sampled_ids[[2, 5]].tolist() == [7, 9]
    others = [0, 1, 3, 4]
    assert out.sampled_ids[others].tolist() == plain.sampled_ids[others].tolist()
    assert out.sampled_logprob[others].tobytes() == plain.sampled_logprob[others].tobytes()


def test_row_sampler_logprob_is_that_of_its_token_over_temperature():
    logits = row()
    out = run(logits, {0: with_sampler(Returns([7]))}, temperature=0.7, max_top_logprobs=2)
    expected = torch.log_softmax(logits[0].double() / np.float64(np.float32(0.7)), 0)
    np.testing.assert_allclose(out.sampled_logprob[0], expected[7], rtol=1e-5)
    assert out.top_ids[0].tolist() == oracle.ranking(logits[0].tolist())[:2]


def test_row_sampler_draw_is_the_canonical_draw_of_seed_and_position():
    p = (0.1, 0.2, 0.3, 0.4)
    for seed, position, token in ((0, 0, 3), (42, 1000, 3), (2**64 - 1, 131071, 2)):
        named = MinP(1e-6)
        out = run([logits_of(*p)], {0: with_sampler(named)}, seed=[seed], sample_pos=position)
        assert out.sampled_ids.tolist() == [token]


@pytest.mark.parametrize(
    "p", [[0.5] * 3, [0.5, 0.5, 0.5, 0.5], [-0.1, 0.6, 0.5, 0.0], [math.nan, 0, 0, 1], [0.0] * 4], ids=str
)
def test_row_sampler_draw_of_what_is_no_distribution_fails(p):
    class Wrong:
        def sample(self, logits, draws):
            return [draws[0](np.array(p))]

    parts = with_sampler(Wrong())
    out = run([[0.0] * 4], {0: parts})
    assert out.row_status.tolist() == [2]
    assert "ValueError: draw: expected probabilities" in parts.fault.reason


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (KeyError("x"), "sampler 'named' failed"),
        ([], "sampler 'named' returned 0 tokens, expected 1, one for each row"),
        ([V], f"sampler 'named' returned token {V}, expected ids from 0 to {V - 1}"),
        ([-1], "sampler 'named' returned token -1"),
        ([3], "sampler 'named' returned token 3, which is forbidden here"),
        (None, "sampler 'named' failed"),
    ],
    ids=str,
)
def test_row_sampler_that_fails_ends_its_request_alone(result, text):
    logits, given = row(n=3), {"seed": [1, 2, 3], "eos_suppress": np.array([[1, 3]], np.int32)}
    plain = CanonicalSampler(V).sample(logits, step_inputs(3, **given))
    parts = with_sampler(Returns(result))
    out = run(logits, {1: parts}, **given)
    assert out.row_status.tolist() == [0, 2, 0]
    assert parts.fault.what.startswith(text)
    assert parts.fault.code == "E_REQUEST"
    assert out.sampled_ids[[0, 2]].tolist() == plain.sampled_ids[[0, 2]].tolist()


def test_row_sampler_does_not_see_forced_tokens_replaced():
    out = run(row(), {0: with_sampler(Returns([7]))}, forced=[9])
    assert out.sampled_ids.tolist() == [9]


# --- filters -----------------------------------------------------------------------------------------------------


def test_filter_runs_behind_bias_and_penalties_and_before_the_grammar():
    def raise_four(logits, positions):
        logits[:, 4] = 1000.0
        return logits

    seen = Apply(raise_four)
    logits = row()
    out = run(
        logits, {0: with_filters(seen)}, temperature=0.0, sample_pos=17, bias=np.array([[0, 2]], np.int32),
        bias_value=np.array([1.0], np.float32), frequency_penalty=0.5, **history(([1], [2, 3])),
        grammar_mask=[np.array([oracle.words([5, 6], 2)], np.int32)], grammar_rows=[np.array([0], np.int32)],
    )  # fmt: skip
    given, positions = seen.seen[0]
    assert given[0, 2] == logits[0, 2] + 1.0 - 0.5
    assert given[0, 3] == logits[0, 3] - 0.5
    assert positions == [17]
    assert out.sampled_ids[0] in (5, 6)


def test_filters_run_in_their_order_on_the_rows_of_their_request():
    double, add = Apply(lambda x, p: x * 2), Apply(lambda x, p: x + 1)
    run(row(n=3), {1: with_filters(double, add)})
    assert (len(double.seen), len(add.seen)) == (1, 1)
    np.testing.assert_array_equal(double.seen[0][0], row(n=3)[1:2].numpy())
    np.testing.assert_array_equal(add.seen[0][0], row(n=3)[1:2].numpy() * 2)


def test_filter_raises_no_forbidden_token():
    for preparation_given in ({"eos_suppress": np.array([[0, 3]], np.int32)},):
        out = run(row(), {0: with_filters(Apply(lambda x, p: np.where(np.arange(V) == 3, 99.0, -1.0)[None]))},
                  temperature=0.0, **preparation_given)  # fmt: skip
        assert out.sampled_ids[0] != 3


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda x, p: x[:, 1:], f"logits filter 'f0' returned shape (1, {V - 1}), expected (1, {V})"),
        (lambda x, p: x * np.nan, "logits filter 'f0' returned NaN or +inf, expected logits below +inf"),
        (lambda x, p: x + np.inf, "logits filter 'f0' returned NaN or +inf"),
        (lambda x, p: None, "logits filter 'f0' "),
        (lambda x, p: 1 / 0, "logits filter 'f0' failed"),
    ],
)
def test_filter_that_fails_ends_its_request_alone(change, text):
    logits, given = row(n=3), {"seed": [1, 2, 3]}
    plain = CanonicalSampler(V).sample(logits, step_inputs(3, **given))
    parts = with_filters(Apply(change))
    with np.errstate(all="ignore"):
        out = run(logits, {1: parts}, **given)
    assert out.row_status.tolist() == [0, 2, 0]
    assert parts.fault.what.startswith(text)
    assert out.sampled_ids[[0, 2]].tolist() == plain.sampled_ids[[0, 2]].tolist()


def test_filter_leaves_the_logits_of_the_model_unchanged():
    logits = row(n=2)
    before = logits.clone()
    run(logits, {0: with_filters(Apply(lambda x, p: np.multiply(x, 0, out=x)))})
    assert torch.equal(logits, before)


def test_parts_in_small_chunks_give_the_same(monkeypatch):
    logits, seeds = row(n=9), np.arange(9)

    def parts():
        return {1: with_filters(Apply(lambda x, p: x * 0.5)), 4: with_sampler(MinP(0.2)), 8: with_sampler(MinP(0.01))}

    expected = run(logits, parts(), seed=seeds)
    monkeypatch.setattr("deepinfer_samplers.rows._CHUNK_ELEMENTS", {"cpu": 2 * V})
    assert run(logits, parts(), seed=seeds).sampled_ids.tolist() == expected.sampled_ids.tolist()
