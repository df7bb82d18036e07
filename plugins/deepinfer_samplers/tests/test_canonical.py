"""The sampler as a whole: limits, faults of single rows, forced tokens, independence from the batch."""

import ctypes
import sys

import numpy as np
import pytest
import samplers_oracle as oracle
import torch
from samplers_step import logits_of, sample, sampler_inputs

from deepinfer_contracts import SamplerOutput
from deepinfer_core.errors import NotSupported, ShapeContractError
from deepinfer_core.interfaces import Sampler
from deepinfer_samplers.canonical import CanonicalSampler

HALVES = logits_of(0.5, 0.25, 0.125, 0.125)
MIXED = {
    "temperature": [0.0, 1.0, 1.0, 0.7, 1.3, 1e-8, 1.0, 2.0],
    "top_k": [-1, 2, -1, 40, 10**9, 5, 1, 7],
    "top_p": [1.0, 1.0, 1.0, 0.9, 0.5, 0.2, 1.0, 0.95],
    "min_p": [0.0, 0.0, 0.0, 0.0, 0.05, 0.0, 0.0, 0.1],
    "seed": [1, 2, 2**64 - 1, 4, 5, 6, 7, 8],
    "sample_pos": [10, 11, 12, 13, 14, 15, 16, 17],
}


def random_logits(n, width=300, seed=0):
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed)) * 3


def assert_equal_output(got, expected):
    np.testing.assert_array_equal(got.sampled_ids, expected.sampled_ids)
    np.testing.assert_array_equal(got.sampled_logprob.view(np.int32), expected.sampled_logprob.view(np.int32))
    np.testing.assert_array_equal(got.row_status, expected.row_status)


# --- output ------------------------------------------------------------------------------------------------------


def test_sample_returns_host_arrays_of_the_contract_types():
    out = sample(random_logits(3))
    assert (out.sampled_ids.dtype, out.sampled_ids.shape) == (np.int32, (3,))
    assert (out.sampled_logprob.dtype, out.sampled_logprob.shape) == (np.float32, (3,))
    assert (out.row_status.dtype, out.row_status.shape) == (np.int8, (3,))
    assert isinstance(CanonicalSampler(8), Sampler)


def test_sample_no_request_gives_empty_arrays():
    out = sample(torch.zeros(0, 8))
    assert out.sampled_ids.shape == out.sampled_logprob.shape == out.row_status.shape == (0,)


def test_sample_logprob_is_that_of_the_processed_distribution():
    logits = random_logits(64, 50)
    out = sample(logits, temperature=0.7, seed=np.arange(64))
    expected = torch.log_softmax(logits.double() / np.float64(np.float32(0.7)), -1)
    got = expected[torch.arange(64), torch.from_numpy(out.sampled_ids).long()]
    np.testing.assert_allclose(out.sampled_logprob, got, rtol=1e-5, atol=1e-5)
    assert (out.sampled_logprob <= 0).all()


def test_sample_leaves_logits_unchanged():
    logits = random_logits(2, 16)
    before = logits.clone()
    sample(logits, top_p=0.5, eos_suppress=np.array([[0, 3]], np.int32))
    assert torch.equal(logits, before)


def test_sample_accepts_tensors_as_well_as_numpy_inputs():
    logits, inputs = random_logits(8), sampler_inputs(8, **MIXED)
    expected = CanonicalSampler(300).sample(logits, inputs)
    for name in ("temperature", "top_p", "min_p", "top_k", "sample_pos", "seed"):
        value = getattr(inputs, name)
        setattr(inputs, name, torch.from_numpy(value.view(np.int64) if name == "seed" else value))
    assert_equal_output(CanonicalSampler(300).sample(logits, inputs), expected)


def test_sample_token_is_the_canonical_draw_of_seed_and_position():
    """The plain hash and the plain draw, over the probabilities that the sampler's own filters leave."""
    logits = random_logits(8, 60)
    for top_k in (-1, 6):
        seeds, positions = [0, 1, 42, 2**64 - 1, 2**63, 5, 6, 7], [0, 1, 1000, 131071, 2**31 - 1, 3, 2, 9]
        out = sample(logits, seed=seeds, sample_pos=positions, top_k=top_k)
        for i in range(8):
            row = logits[i].tolist()
            p = oracle.probabilities(row, 1.0, oracle.kept(row, 1.0, 0.0, 1.0, top_k))
            weights = [int(value * 2**31) for value in p]
            assert out.sampled_ids[i] == oracle.draw(weights, oracle.key(seeds[i], positions[i], 0))


# --- limits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [{"temperature": 0.0}, {"temperature": 1e-8}, {"temperature": 1e-4}, {"top_p": 1e-9}])
def test_sample_at_its_limits_gives_the_greedy_token(given):
    logits = random_logits(32)
    out = sample(logits, seed=np.arange(32), **given)
    assert out.sampled_ids.tolist() == logits.argmax(-1).tolist()
    assert (out.sampled_logprob == 0.0).all()


def test_greedy_and_top_k_one_break_ties_by_the_lowest_id_alone_and_together():
    row = [0.0, 5.0, 1.0, 5.0]
    for rows in ([row], [row] * 2):
        assert set(sample(rows, temperature=0.0).sampled_ids.tolist()) == {1}
        assert set(sample(rows, top_k=1, seed=99).sampled_ids.tolist()) == {1}
    assert sample([row, row], temperature=[0.0, 1.0], top_k=[-1, 1]).sampled_ids.tolist() == [1, 1]


def test_greedy_zeros_of_either_sign_are_a_tie():
    assert sample([[-1.0, -0.0, 0.0]], temperature=0.0).sampled_ids.tolist() == [1]


def test_sample_extreme_parameters_raise_no_floating_point_trap():
    logits = torch.tensor([[3.4e38, -3.4e38, 0.0, -np.inf]] * 8)
    with np.errstate(all="raise"):
        out = sample(logits, temperature=[0.0, 1e-30, 9e-6, 1e-5, 1e-4, 1.0, 1e30, 3.4e38], top_p=0.9, min_p=1e-6)
    assert out.row_status.tolist() == [0] * 8
    assert out.sampled_ids.tolist()[:6] == [0] * 6


@pytest.mark.skipif(sys.platform != "linux", reason="reads the floating-point flags through glibc")
def test_greedy_divides_by_no_zero_and_makes_no_nan():
    invalid, zero_division = 1, 4  # FE_INVALID, FE_DIVBYZERO of x86-64 and AArch64: see the check below
    libm = ctypes.CDLL("libm.so.6")
    flags = invalid | zero_division if sys.byteorder == "little" else 0
    logits, inputs = random_logits(4), sampler_inputs(4, temperature=0.0)
    libm.feclearexcept(flags)
    CanonicalSampler(300).sample(logits, inputs)
    assert libm.fetestexcept(flags) == 0


@pytest.mark.parametrize("top_p", [0.74, 0.76])
def test_top_p_around_three_quarters_keeps_two_or_three_tokens(top_p):
    out = sample(torch.tensor([HALVES]).repeat(2000, 1), top_p=top_p, seed=np.arange(2000))
    assert set(out.sampled_ids.tolist()) == ({0, 1} if top_p == 0.74 else {0, 1, 2})


def test_sample_head_rows_beyond_the_vocabulary_are_never_chosen():
    logits = torch.full((6, 308), 100.0)
    logits[:, :300] = random_logits(6)
    given = {
        "temperature": [0.0, 1.0, 1.0, 1.0, 1.0, 5.0],
        "top_p": [1, 1, 0.9, 1, 1, 1],
        "top_k": [-1, -1, -1, 5, -1, 9],
    }
    given["min_p"] = [0, 0, 0, 0, 0.1, 0]
    assert_equal_output(sample(logits, 300, **given), sample(logits[:, :300], **given))
    logits[:, 300:] = np.nan
    assert sample(logits, 300, **given).row_status.tolist() == [0] * 6


# --- on a device --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [300, 9000])
@pytest.mark.parametrize("case", ["mixed", "ties", "faults", "forced", "suppressed"])
def test_sample_waits_for_no_device_and_gives_the_same(monkeypatch, case, width):
    logits, given = random_logits(8, width), dict(MIXED)
    if case == "ties":
        logits = logits.round()
    if case == "faults":
        logits[1, 7], logits[3], logits[4, 0], logits[5] = np.nan, -np.inf, np.inf, np.nan
    if case == "forced":
        given["forced"] = np.array([-1, 3, 200, -1, 0, 7, -1, 9], np.int32)
    if case == "suppressed":
        logits[2, 5] = np.nan
        given["eos_suppress"] = np.array([[0, int(logits[0].argmax())], [2, 5], [2, 6], [7, 1]], np.int32)
    given = {k: np.array(v, np.uint64) if k == "seed" else v for k, v in given.items()}
    expected = sample(logits, **given)
    # The same tensors, taken for memory of a device: nothing is asked, and every result stays a tensor.
    monkeypatch.setattr("deepinfer_samplers.shortcuts.on_host", lambda tensor: False)
    sampler, inputs = CanonicalSampler(width), sampler_inputs(8, **given)
    with pytest.importorskip("deepinfer_cpu.sync_guard").NoSync():
        out = sampler.sample(logits, inputs)
    got = {name: getattr(out, name) for name in ("sampled_ids", "sampled_logprob", "row_status")}
    assert all(isinstance(value, torch.Tensor) for value in got.values())
    assert_equal_output(SamplerOutput(**{name: value.numpy() for name, value in got.items()}), expected)


# --- faults of single rows ---------------------------------------------------------------------------------------


def test_sample_faulty_rows_are_reported_and_the_others_keep_their_tokens():
    logits = random_logits(8)
    solo = [sample(logits[i : i + 1], seed=i, sample_pos=5) for i in range(8)]
    broken = logits.clone()
    broken[1, 7] = np.nan
    broken[3] = -np.inf
    broken[4, 0] = np.inf
    broken[5] = np.nan
    broken[6, 1:] = -np.inf
    for given in ({}, {"top_p": 1.0, "temperature": [1, 0, 1, 0, 1, 0, 1, 1]}):
        out = sample(broken, seed=np.arange(8), sample_pos=5, **given)
        assert out.row_status.tolist() == [0, 1, 0, 1, 1, 1, 0, 0]
        for i in (0, 2, 7):
            assert out.sampled_ids[i] == solo[i].sampled_ids[0]
        assert (out.sampled_ids[6], out.sampled_logprob[6]) == (0, 0.0)
        assert (out.sampled_ids[[1, 3, 4, 5]] == 0).all()
        assert np.isneginf(out.sampled_logprob[[1, 3, 4, 5]]).all()


@pytest.mark.parametrize("given", [{"temperature": 0.0}, {}, {"top_p": 0.5}, {"top_k": 3}, {"min_p": 0.5}])
def test_sample_all_rows_faulty_raises_nothing(given):
    rows = [[np.nan] * 4, [-np.inf] * 4, [np.inf] * 4, [np.nan, 1.0, 2.0, 3.0]]
    assert sample(rows, **given).row_status.tolist() == [1, 1, 1, 1]


def test_sample_nan_hidden_by_a_mask_is_still_a_fault():
    out = sample([[np.nan, 1.0, 0.0], [0.0, 1.0, 0.0]], eos_suppress=np.array([[0, 0], [1, 0]], np.int32))
    assert out.row_status.tolist() == [1, 0]
    pairs, rows = np.array([[0, 0], [1, 0]], np.int32), {"first_row": [1, 0], "row_count": [1, 1]}
    out = sample([[np.nan, 1.0, 0.0], [0.0, 1.0, 0.0]], eos_suppress=pairs, temperature=0.0, **rows)
    assert out.row_status.tolist() == [0, 1]


# --- masks and forced tokens -------------------------------------------------------------------------------------


def test_eos_suppress_masks_only_the_named_pairs():
    logits = torch.zeros(3, 4)
    logits[:, 2] = 50.0
    pairs = np.array([[0, 2], [2, 2], [2, 0]], np.int32)
    out = sample(logits, temperature=0.0, eos_suppress=pairs)
    assert out.sampled_ids.tolist() == [0, 2, 1]
    out = sample(logits, seed=[5, 6, 7], eos_suppress=pairs)
    assert out.sampled_ids[0] != 2
    assert out.sampled_ids[2] in (1, 3)


def test_eos_suppress_of_a_head_row_beyond_the_vocabulary_is_harmless():
    logits = torch.tensor([[1.0, 2.0, np.nan, 9.0]])
    out = sample(logits, 2, temperature=0.0, eos_suppress=np.array([[0, 1], [0, 2], [0, 3]], np.int32))
    assert (out.sampled_ids.tolist(), out.row_status.tolist()) == ([0], [0])


def test_eos_suppress_of_every_token_reports_nothing_allowed():
    pairs = np.array([[0, 0], [0, 1]], np.int32)
    assert sample([[1.0, 2.0], [1.0, 2.0]], eos_suppress=pairs).row_status.tolist() == [2, 0]


def test_forced_token_replaces_the_drawn_one_with_its_own_logprob():
    rows = [HALVES] * 5
    out = sample(
        rows,
        temperature=[1.0, 1.0, 0.0, 0.0, 1.0],
        top_k=[-1, 2, -1, -1, -1],
        forced=[3, 3, 0, 1, -1],
        seed=4,
    )
    free = sample(rows, temperature=[1.0, 1.0, 0.0, 0.0, 1.0], top_k=[-1, 2, -1, -1, -1], seed=4)
    assert out.sampled_ids.tolist() == [3, 3, 0, 1, free.sampled_ids[4]]
    np.testing.assert_allclose(out.sampled_logprob[0], np.log(0.125), rtol=1e-5)
    assert np.isneginf(out.sampled_logprob[[1, 3]]).all()  # filtered out
    assert out.sampled_logprob[2] == 0.0
    assert out.sampled_logprob[4] == free.sampled_logprob[4]


def test_forced_entries_all_free_change_nothing():
    logits = random_logits(8)
    assert_equal_output(sample(logits, forced=[-1] * 8, **MIXED), sample(logits, **MIXED))


# --- independence ------------------------------------------------------------------------------------------------


def test_sample_batch_of_different_requests_equals_the_solo_runs():
    logits = random_logits(8)
    batch = sample(logits, **MIXED)
    for i in range(8):
        solo = sample(logits[i : i + 1], **{name: [values[i]] for name, values in MIXED.items()})
        assert solo.sampled_ids[0] == batch.sampled_ids[i]
        assert solo.sampled_logprob[0].tobytes() == batch.sampled_logprob[i].tobytes()


def test_sample_permuted_rows_keep_their_tokens():
    logits, order = random_logits(8), np.array([3, 1, 7, 0, 5, 2, 6, 4])
    whole = sample(logits, **MIXED)
    permuted = {name: np.array(values, np.uint64 if name == "seed" else None)[order] for name, values in MIXED.items()}
    moved = sample(logits[order], **permuted)
    np.testing.assert_array_equal(moved.sampled_ids, whole.sampled_ids[order])
    np.testing.assert_array_equal(moved.sampled_logprob, whole.sampled_logprob[order])


def test_sample_rows_beyond_the_requests_are_ignored():
    logits = random_logits(11)
    padded = logits.clone()
    padded[8:] = np.nan
    assert_equal_output(sample(padded, n=8, **MIXED), sample(logits[:8], **MIXED))


def test_sample_first_row_names_the_row_of_each_request():
    logits = random_logits(12)
    rows = [9, 2, 4, 0, 11, 5, 1, 7]
    out = sample(logits, n=8, first_row=rows, row_count=[1] * 8, **MIXED)
    assert_equal_output(out, sample(logits[rows], **MIXED))
    forced, pairs = np.full(12, -1, np.int32), np.array([[2, int(logits[2].argmax())]], np.int32)
    forced[9] = 123
    masked = sample(logits, n=8, first_row=rows, row_count=[1] * 8, temperature=0.0, eos_suppress=pairs)
    changed = masked.sampled_ids != logits[rows].argmax(-1).numpy()
    assert changed.tolist() == [row == 2 for row in rows]
    out = sample(logits, n=8, first_row=rows, row_count=[1] * 8, forced=forced, **MIXED)
    assert out.sampled_ids[0] == 123


def test_sample_more_rows_than_a_chunk_equal_the_solo_runs(monkeypatch):
    logits = random_logits(40)
    given = {name: np.array(values * 5, np.uint64 if name == "seed" else None) for name, values in MIXED.items()}
    whole = sample(logits, **given)
    monkeypatch.setattr("deepinfer_samplers.rows._CHUNK_ELEMENTS", {"cpu": 900})
    assert_equal_output(sample(logits, **given), whole)


def test_sample_thread_count_changes_no_bit():
    logits, given = random_logits(2, 129280), {"temperature": 1.3, "top_p": [1.0, 0.9], "seed": [3, 4]}
    before = torch.get_num_threads()
    try:
        outs = []
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            outs.append(sample(logits, **given))
    finally:
        torch.set_num_threads(before)
    assert_equal_output(outs[1], outs[0])
    assert_equal_output(outs[2], outs[0])


def test_sample_token_depends_on_seed_and_position_only():
    row = torch.zeros(1, 1000)
    first = sample(row, seed=7, sample_pos=3)
    assert_equal_output(sample(row, seed=7, sample_pos=3), first)
    others = [sample(row, seed=s, sample_pos=p).sampled_ids[0] for s, p in [(8, 3), (7, 4), (7, 5), (2**63 + 7, 3)]]
    assert all(other != first.sampled_ids[0] for other in others)


# --- refusals ----------------------------------------------------------------------------------------------------


def test_sample_rows_of_drafts_are_refused_by_name():
    with pytest.raises(NotSupported, match=r"SamplerInputs\.draft_rows is set"):
        sample(torch.zeros(3, 4), n=2, first_row=[0, 1], row_count=[1, 2], draft_rows=[0, 5, 0])


def test_sample_absent_features_in_every_form_are_accepted():
    inputs = sampler_inputs(1, bias=np.zeros((0, 2), np.int32), forced=np.zeros(0, np.int32))
    inputs.grammar_mask = [None, None]
    inputs.draft_write_slot = np.zeros(1, np.int32)
    inputs.max_top_logprobs = 0
    inputs.eos_suppress = np.zeros((0, 2), np.int32)
    assert CanonicalSampler(4).sample(torch.zeros(1, 4), inputs).row_status.tolist() == [0]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"forced": [4, -1]}, "forced: expected token ids below 4, or -1, got 4"),
        ({"forced": [1]}, "forced: expected at least 2 entries, one a row, got 1"),
        ({"eos_suppress": np.array([[2, 0]], np.int32)}, "eos_suppress: expected (logit row, token) within"),
        ({"eos_suppress": np.array([[0, -1]], np.int32)}, "eos_suppress: expected (logit row, token) within"),
        ({"eos_suppress": np.array([0, 1], np.int32)}, "eos_suppress: expected shape (X, 2)"),
        ({"first_row": [0, 2]}, "first_row: expected rows of the logits, 0..1, got 0..2"),
        ({"first_row": [0]}, "first_row: expected shape (2,), one entry a request, got shape (1,)"),
    ],
)
def test_sample_inputs_that_do_not_fit_are_refused(given, text):
    with pytest.raises(ShapeContractError) as caught:
        sample(torch.zeros(2, 4), **given)
    assert text in str(caught.value)


@pytest.mark.parametrize("logits", [torch.zeros(2, 3), torch.zeros(4), torch.zeros(2, 4, dtype=torch.float64)])
def test_sample_logits_of_wrong_shape_or_type_are_refused(logits):
    with pytest.raises(ShapeContractError, match="logits: expected float32"):
        CanonicalSampler(4).sample(logits, sampler_inputs(2))


def test_sample_fewer_rows_than_requests_is_refused():
    with pytest.raises(ShapeContractError, match="at least 3 rows"):
        sample(torch.zeros(2, 4), n=3)
