"""Blacklist, suppressed tokens, bias, grammar masks and forced top-k: steps 2 to 7, alone and in their order."""

import math

import numpy as np
import pytest
import samplers_oracle as oracle
import torch
from samplers_sequence import changed, history, prepared, take

from deepinfer_core.errors import ShapeContractError
from deepinfer_samplers.canonical import CanonicalSampler
from deepinfer_samplers.rows import ROW_NAN, ROW_NOTHING_ALLOWED, ROW_OK, Preparation

V = 70  # no multiple of 32
NEVER = -math.inf


def row(seed=0, n=1, width=V):
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed)) * 3


def mask(*allowed, n_words=-(-V // 32)):
    return np.array([oracle.words(tokens, n_words) for tokens in allowed], np.int32)


def rows_of(*requests):
    return [np.array(listed, np.int32) for listed in requests]


def finite(logits):
    return [line.isfinite().nonzero().flatten().tolist() for line in logits]


# --- blacklist and bias ------------------------------------------------------------------------------------------


def test_blacklist_masks_its_tokens_in_every_row():
    got = changed(row(n=3), Preparation(V, blacklist=(3, 69, 3)))
    assert all(tokens == [v for v in range(V) if v not in (3, 69)] for tokens in finite(got))


def test_blacklist_of_every_token_reports_nothing_allowed():
    sampler = CanonicalSampler(3, preparation=Preparation(3, blacklist=(0, 1, 2)))
    assert take(sampler, [[1.0, 2.0, 3.0]]).row_status.tolist() == [ROW_NOTHING_ALLOWED]


def test_bias_is_added_to_the_named_logits_only():
    logits = row(n=2)
    pairs, values = np.array([[0, 3], [1, 69]], np.int32), np.array([100.0, -0.5], np.float32)
    got = changed(logits, bias=pairs, bias_value=values)
    expected = logits.clone()
    expected[0, 3] += 100.0
    expected[1, 69] -= 0.5
    assert torch.equal(got, expected)


def test_bias_raises_no_masked_token():
    given = {"bias": np.array([[0, 3]], np.int32), "bias_value": np.array([100.0], np.float32)}
    got = changed(row(), Preparation(V, blacklist=(3,)), **given)
    assert got[0, 3] == NEVER
    assert changed(row(), **given, eos_suppress=np.array([[0, 3]], np.int32))[0, 3] == NEVER


def test_bias_comes_before_the_penalties():
    given = {"bias": np.array([[0, 2]], np.int32), "bias_value": np.array([3.0], np.float32)}
    got = changed(torch.full((1, V), -1.0), **given, repetition_penalty=2.0, **history(([2], [])))
    assert got[0, 2] == 1.0  # (-1 + 3) / 2


def test_bias_of_a_row_that_nobody_samples_is_harmless():
    logits = row(n=3)
    given = {"bias": np.array([[0, 1], [2, 1]], np.int32), "bias_value": np.array([5.0, 7.0], np.float32)}
    got = changed(logits, n=1, first_row=[2], row_count=[1], **given)
    assert got[0, 1] == logits[2, 1] + 7.0


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"bias": [[3, 0]], "bias_value": [1.0]}, "bias: expected (logit row, token) within (0..1, 0..69)"),
        ({"bias": [[0, 70]], "bias_value": [1.0]}, "bias: expected (logit row, token) within"),
        ({"bias": [[0, 1]], "bias_value": [1.0, 2.0]}, "bias_value: expected shape (1,), one for each of bias"),
        ({"bias": [[0, 1]]}, "bias_value: expected shape (1,)"),
    ],
)
def test_bias_that_does_not_fit_is_refused(given, text):
    given = {name: np.array(value, np.int32 if name == "bias" else np.float32) for name, value in given.items()}
    with pytest.raises(ShapeContractError) as caught:
        take(CanonicalSampler(V), row(n=2), **given)
    assert text in str(caught.value)


# --- grammar masks -----------------------------------------------------------------------------------------------


def test_grammar_mask_leaves_the_allowed_tokens_of_listed_requests():
    got = changed(row(n=3), grammar_mask=[mask([0, 31, 32, 69], [], [5])], grammar_rows=rows_of([0, 2]))
    assert finite(got) == [[0, 31, 32, 69], list(range(V)), [5]]


@pytest.mark.parametrize("device", [False, True], ids=["host", "as on a device"])
def test_grammar_masks_of_draft_steps_apply_to_their_rows(monkeypatch, device):
    if device:
        monkeypatch.setattr("deepinfer_samplers.shortcuts.on_host", lambda tensor: False)
    # Request 0 has rows 0..2, request 1 row 3: its masks of later draft steps have no row.
    masks = [mask([1], [4]), mask([2], [5]), mask([3], [6])]
    got = changed(row(n=4), n=2, first_row=[0, 3], row_count=[3, 1], grammar_mask=masks,
                  grammar_rows=rows_of([0, 1], [0, 1], [0, 1]))  # fmt: skip
    assert finite(got) == [[1], [2], [3], [4]]


def test_grammar_masks_absent_for_some_draft_steps_leave_these_rows():
    got = changed(row(n=3), n=1, first_row=[0], row_count=[3], grammar_mask=[mask([1]), None, mask([3])],
                  grammar_rows=[*rows_of([0]), None, *rows_of([0])])  # fmt: skip
    assert finite(got) == [[1], list(range(V)), [3]]


@pytest.mark.parametrize("n_words", [1, 2, 3, 5])
def test_grammar_mask_of_another_width_than_the_vocabulary_forbids_what_it_does_not_name(n_words):
    everything = np.full((1, n_words), -1, np.int32)
    got = changed(row(), grammar_mask=[everything], grammar_rows=rows_of([0]))
    assert finite(got) == [list(range(min(V, 32 * n_words)))]


def test_grammar_mask_wider_than_the_head_chooses_no_row_beyond_the_vocabulary():
    logits = torch.full((1, 80), 100.0)
    out = take(CanonicalSampler(V), logits, grammar_mask=[mask([75, 4], n_words=3)], grammar_rows=rows_of([0]))
    assert out.sampled_ids.tolist() == [4]


def test_grammar_mask_comes_after_bias_and_penalties():
    got = changed(
        row(), grammar_mask=[mask([4, 5])], grammar_rows=rows_of([0]), bias=np.array([[0, 9], [0, 4]], np.int32),
        bias_value=np.array([100.0, 1.0], np.float32), repetition_penalty=2.0, **history(([9, 5], [])),
    )  # fmt: skip
    assert finite(got) == [[4, 5]]
    assert got[0, 4] == row()[0, 4] + 1.0


def test_grammar_mask_without_a_token_is_told_apart_from_a_broken_row():
    logits = row(n=4)
    logits[1, 3] = np.nan  # in a column that the mask forbids
    logits[3] = NEVER
    masks = [mask([], [4], [4], [4])]
    out = take(CanonicalSampler(V), logits, grammar_mask=masks, grammar_rows=rows_of([0, 1, 2, 3]))
    assert out.row_status.tolist() == [ROW_NOTHING_ALLOWED, ROW_NAN, ROW_OK, ROW_NAN]
    assert out.sampled_ids[2] == 4
    assert out.sampled_logprob[2] == 0.0


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"grammar_mask": [None], "grammar_rows": rows_of([0])}, "grammar_mask[0]: expected shape (2, 3)"),
        ({"grammar_mask": [mask([1])], "grammar_rows": rows_of([0])}, "grammar_mask[0]: expected shape (2, 3)"),
        ({"grammar_mask": [mask([1], [1])], "grammar_rows": rows_of([2])}, "grammar_rows[0]: expected requests 0..1"),
    ],
)
def test_grammar_mask_that_does_not_fit_is_refused(given, text):
    with pytest.raises(ShapeContractError) as caught:
        take(CanonicalSampler(V), row(n=2), **given)
    assert text in str(caught.value)


def test_grammar_mask_op_of_a_backend_is_used_and_gives_the_same():
    sampling = pytest.importorskip("deepinfer_cpu.ops.sampling")
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return sampling.mask(*arguments)

    masks, rows = [mask([1, 40], [2], [3])], rows_of([0, 2])
    got = changed(row(n=3), Preparation(V, mask=counted), grammar_mask=masks, grammar_rows=rows)
    assert torch.equal(got, changed(row(n=3), grammar_mask=masks, grammar_rows=rows))
    assert calls


# --- forced top-k ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 5, V - 1])
def test_force_top_k_keeps_the_best_with_ties_by_the_lower_id(k):
    logits = (row(n=4) / 2).round()  # many ties
    got = changed(logits, Preparation(V, force_top_k=k))
    assert finite(got) == [sorted(oracle.ranking(line.tolist())[:k]) for line in logits]


@pytest.mark.parametrize("k", [0, V, 10**6])
def test_force_top_k_off_or_of_the_vocabulary_changes_nothing(k):
    rows = prepared(row(), Preparation(V, force_top_k=k))
    assert rows[0].logits.data_ptr() == rows[0].raw.data_ptr()


def test_force_top_k_counts_what_the_grammar_allows():
    got = changed(row(), Preparation(V, force_top_k=2), grammar_mask=[mask([1, 2, 3, 4])], grammar_rows=rows_of([0]))
    best = sorted((1, 2, 3, 4), key=lambda token: -row()[0, token])[:2]
    assert finite(got) == [sorted(best)]


# --- all together ------------------------------------------------------------------------------------------------


def everything(n):
    """Fields that touch some of ``n`` rows each."""
    odd = np.arange(1, n, 2)
    return {
        "eos_suppress": np.stack([odd, odd % V], 1).astype(np.int32),
        "bias": np.array([[i, (7 * i) % V] for i in range(0, n, 3)], np.int32),
        "bias_value": np.array([1.0 + i for i in range(0, n, 3)], np.float32),
        "grammar_mask": [mask(*[range(i % 5, V, 2) for i in range(n)])],
        "grammar_rows": rows_of(range(0, n, 4)),
        "repetition_penalty": [1.0 + (i % 3) / 4 for i in range(n)],
        "presence_penalty": [0.5 * (i % 2) for i in range(n)],
        "temperature": [0.0 if i % 5 == 4 else 0.5 + i % 3 for i in range(n)],
        "top_p": [0.9 if i % 2 else 1.0 for i in range(n)],
        "top_k": [40 if i % 3 == 0 else -1 for i in range(n)],
        "seed": list(range(n)),
        **history(*[([i % V, 1], [i % 7]) for i in range(n)]),
    }


def test_changes_leave_the_logits_of_the_model_unchanged():
    logits = row(n=12)
    before = logits.clone()
    take(CanonicalSampler(V, preparation=Preparation(V, blacklist=(1,), force_top_k=30)), logits, **everything(12))
    assert torch.equal(logits, before)


def test_changes_in_small_parts_and_on_a_device_give_the_same_tokens(monkeypatch):
    logits = row(n=23)
    logits[5, 3] = np.nan
    expected = take(CanonicalSampler(V), logits, **everything(23))
    monkeypatch.setattr("deepinfer_samplers.rows._CHUNK_ELEMENTS", {"cpu": 2 * V})
    for on_host in (True, False):
        if not on_host:
            monkeypatch.setattr("deepinfer_samplers.shortcuts.on_host", lambda tensor: False)
        out = take(CanonicalSampler(V), logits, **everything(23))
        assert out.sampled_ids.tolist() == expected.sampled_ids.tolist()
        assert np.asarray(out.sampled_logprob).tobytes() == expected.sampled_logprob.tobytes()
        assert out.row_status.tolist() == expected.row_status.tolist()


def test_changes_in_a_permuted_batch_give_each_request_its_tokens():
    n, logits, given = 12, row(n=12), everything(12)
    expected = take(CanonicalSampler(V), logits, **given)
    order = np.random.default_rng(4).permutation(n)
    place = np.argsort(order)
    moved = dict(given)
    for name in ("repetition_penalty", "presence_penalty", "temperature", "top_p", "top_k", "seed"):
        moved[name] = [given[name][i] for i in order]
    for name in ("eos_suppress", "bias"):
        moved[name] = np.stack([place[given[name][:, 0]], given[name][:, 1]], 1).astype(np.int32)
    moved["grammar_mask"] = [given["grammar_mask"][0][order]]
    moved["grammar_rows"] = rows_of(sorted(place[given["grammar_rows"][0]]))
    moved.update(history(*[([i % V, 1], [i % 7]) for i in order]))
    out = take(CanonicalSampler(V), logits[order], row_slot=order, **moved)
    assert out.sampled_ids.tolist() == expected.sampled_ids[order].tolist()
    assert out.sampled_logprob.tobytes() == expected.sampled_logprob[order].tobytes()
