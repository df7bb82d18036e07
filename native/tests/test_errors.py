"""Refusals: typed, naming what is wrong, and leaving the core as it was."""

import gc
import threading
from decimal import Decimal
from fractions import Fraction

import attrs
import numpy as np
import pytest
from native_driver import VOCAB, Driver, small_config

from deepinfer_contracts import ErrorCode, FinishReason, SamplerOutput, StepMode
from deepinfer_native import Core, CoreConfig
from deepinfer_native.config import derive, to_c
from deepinfer_native.errors import (
    ArgumentError,
    BusyError,
    ConfigurationError,
    ContractError,
    InternalError,
    NotFoundError,
    OrderError,
    StaleHandleError,
)
from deepinfer_native.library import check, ffi, lib
from deepinfer_native.members import members_of
from deepinfer_native.sampler_output import OutputWriter


def state(driver):
    driver.core.check()
    return driver.core.stats()


def ok_output(n, **changes):
    fields = {
        "sampled_ids": np.ones(n, np.int32),
        "sampled_logprob": np.zeros(n, np.float32),
        "row_status": np.zeros(n, np.int8),
    }
    return SamplerOutput(**{**fields, **changes})


@pytest.fixture
def driver():
    d = Driver(small_config())
    d.submit([1, 2, 3], stop=())
    d.submit([4, 5], stop=())
    return d


# --- order -------------------------------------------------------------------------------------------------------


def test_schedule_past_the_depth_is_refused_and_changes_nothing(driver):
    driver.schedule()
    before = state(driver)
    with pytest.raises(OrderError, match="step 1 must be committed first"):
        driver.core.schedule(StepMode.DECODE)
    assert state(driver) == before


def test_schedule_without_step_done_is_refused(driver):
    driver.schedule()
    driver.commit()
    driver.schedule(StepMode.DECODE)
    driver.commit()
    before = state(driver)
    with pytest.raises(OrderError, match="step 1 must be reported done first"):
        driver.core.schedule(StepMode.DECODE)
    assert state(driver) == before


@pytest.mark.parametrize("step", [0, 2, 7])
def test_commit_of_another_step_is_refused_and_changes_nothing(driver, step):
    driver.schedule()
    before = state(driver)
    with pytest.raises(OrderError, match="the next one is 1"):
        driver.core.commit(step, ok_output(2))
    assert state(driver) == before


def test_commit_twice_is_refused(driver):
    driver.schedule()
    driver.retire()
    with pytest.raises(OrderError):
        driver.core.commit(1, ok_output(2))


def test_pack_of_a_committed_step_is_refused(driver):
    driver.schedule()
    driver.retire()
    with pytest.raises(OrderError, match="not the newest uncommitted"):
        driver.core.pack(1)
    with pytest.raises(OrderError, match="not the newest uncommitted"):
        driver.core.pack_sampler(1)


def test_pack_of_an_older_step_is_refused():
    driver = Driver(small_config(depth=2))
    driver.submit([1, 2, 3], stop=())
    driver.step()
    first = driver.schedule().step_id
    driver.schedule()
    with pytest.raises(OrderError):
        driver.core.pack(first)


def test_sampler_inputs_with_drafts_wait_for_the_commit_before():
    driver = Driver(small_config(depth=2, num_draft=2))
    driver.submit([1, 2, 3], stop=(), max_tokens=40)
    driver.step()
    driver.schedule()
    second = driver.schedule().step_id
    with pytest.raises(OrderError, match="known after the commit of step"):
        driver.core.pack_sampler(second)
    driver.commit()
    s = driver.core.pack_sampler(second)
    request = next(iter(driver.follower.requests.values()))
    assert s.sample_pos.tolist() == [len(request.history)]


def test_sampler_inputs_without_drafts_are_exact_before_the_commit_before():
    driver = Driver(small_config(depth=2))
    request = driver.submit([1, 2, 3], stop=(1,), max_tokens=40, min_tokens=3, forced=[5, 6, 7])
    driver.step()
    driver.schedule()
    second = driver.schedule().step_id

    def packed():
        s = driver.core.pack_sampler(second)
        return s.sample_pos.tolist(), s.forced.tolist(), s.eos_suppress.tolist()

    before = packed()
    driver.commit()
    assert len(request.history) == 5
    assert before == packed() == ([5], [7], [[0, 1]])


def test_step_done_of_an_unlaunched_step_is_refused_and_repeats_are_harmless(driver):
    with pytest.raises(OrderError, match="step 1 is not launched"):
        driver.core.step_done(1)
    driver.schedule()
    driver.commit()
    driver.core.step_done(1)
    driver.core.step_done(1)
    driver.core.step_done(0)
    assert state(driver).done == 1


# --- records -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sampled_ids", np.ones(1, np.int32)),
        ("sampled_ids", np.ones(2, np.int64)),
        ("sampled_ids", np.array([1, VOCAB], np.int32)),
        ("sampled_ids", np.array([1, -1], np.int32)),
        ("sampled_ids", None),
        ("sampled_ids", [1, 2]),
        ("sampled_ids", np.ones(4, np.int32)[::2]),
        ("sampled_logprob", None),
        ("sampled_logprob", np.ones(2, np.float32)),
        ("row_status", np.zeros(3, np.int8)),
        ("top_logprobs", np.ones((2, 3), np.float32)),
    ],
)
def test_commit_of_a_wrong_output_names_the_field_and_changes_nothing(driver, field, value):
    driver.schedule()
    before = state(driver)
    with pytest.raises(ContractError) as error:
        driver.core.commit(1, ok_output(2, **{field: value}))
    assert (error.value.code, error.value.contract, error.value.field) == (ErrorCode.CONTRACT, "SamplerOutput", field)
    assert state(driver) == before
    driver.core.commit(1, ok_output(2))


@pytest.mark.parametrize("level", ["off", "boundary"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("accepted", np.array([3], np.int32)),
        ("verified_ids", np.array([-1, 5, -1], np.int32)),
        ("verified_ids", np.array([VOCAB, -1, -1], np.int32)),
        ("verified_ids", None),
        ("draft_ids", np.zeros((1, 3), np.int32)),
    ],
)
def test_commit_of_wrong_drafts_names_the_field_at_every_level(level, field, value):
    driver = Driver(small_config(num_draft=2, validation=level))
    driver.submit([1, 2, 3], stop=())
    driver.step()
    o = driver.schedule()
    before = state(driver)
    fields = {
        "accepted": np.zeros(1, np.int32),
        "verified_ids": np.full(3, -1, np.int32),
        "draft_ids": np.ones((1, 2), np.int32),
    }
    with pytest.raises(ContractError) as error:
        driver.core.commit(o.step_id, ok_output(1, **{**fields, field: value}))
    assert error.value.field in (field, "verified_ids")
    assert state(driver) == before
    driver.core.commit(o.step_id, ok_output(1, **fields))


def test_verified_ids_of_a_prefill_step_have_its_tokens_and_mean_nothing():
    driver = Driver(small_config(num_draft=2))
    driver.submit([1, 2, 3], stop=())
    driver.schedule()
    out = ok_output(1, verified_ids=np.full(3, -1, np.int32), draft_ids=np.ones((1, 2), np.int32))
    out.accepted = np.zeros(1, np.int32)
    assert driver.core.commit(1, out).token_id.tolist() == [1]


@pytest.mark.parametrize(
    ("output", "field"),
    [
        ({"sampled_ids": [1, 1]}, ""),
        (7, ""),
        (ok_output(2, confidence_error="x"), "confidence_error"),
        (ok_output(2, confidence_error=None), "confidence_error"),
    ],
)
def test_commit_of_what_is_no_output_is_a_contract_error(driver, output, field):
    driver.schedule()
    before = state(driver)
    with pytest.raises(ContractError) as error:
        driver.core.commit(1, output)
    assert (error.value.contract, error.value.field) == ("SamplerOutput", field)
    assert state(driver) == before
    driver.core.commit(1, ok_output(2))


def test_output_may_be_missing_only_in_mid_prompt():
    driver = Driver(small_config(max_chunk=8))
    request = driver.submit(list(range(12)), stop=())
    driver.schedule()
    assert len(driver.core.commit(1, None)) == 0
    driver.core.step_done(1)
    driver.schedule()
    with pytest.raises(ArgumentError, match="rows that need a token"):
        driver.core.commit(2, None)
    driver.core.abort([request.uid])
    driver.poll()
    assert driver.core.commit(2, None).count == 0


# --- requests ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("prompt", {"prompt_ids": []}),
        ("prompt", {"prompt_ids": [1, VOCAB]}),
        ("prompt", {"prompt_ids": [-1]}),
        ("prompt", {"prompt_ids": [[1, 2]]}),
        ("prompt", {"prompt_ids": ["a"]}),
        ("prompt", {"prompt_ids": [2**40]}),
        ("max_tokens", {"max_tokens": 0}),
        ("max_tokens", {"max_tokens": 2**40}),
        ("max_tokens", {"max_tokens": 1.5}),
        ("min_tokens", {"min_tokens": -1}),
        ("stop_ids", {"stop_ids": [VOCAB]}),
        ("stop_ids", {"stop_ids": [1] * 40, "eos_ids": [1] * 25}),
        ("eos_ids", {"eos_ids": [-2]}),
        ("forced", {"forced": [-2]}),
        ("priority", {"priority": 8}),
        ("top_k", {"top_k": -2}),
        ("top_p", {"top_p": 0.0}),
        ("top_p", {"top_p": float("nan")}),
        ("min_p", {"min_p": 1.0}),
        ("temperature", {"temperature": -0.1}),
        ("temperature", {"temperature": float("inf")}),
        ("repetition_penalty", {"repetition_penalty": 0.0}),
        ("presence_penalty", {"presence_penalty": 2.5}),
        ("frequency_penalty", {"frequency_penalty": float("nan")}),
        ("seed", {"seed": -1}),
        ("ignore_eos", {"ignore_eos": "yes"}),
        ("max_tokens", {"max_tokens": np.float32(2.9)}),
        ("seed", {"seed": Decimal("2.7")}),
        ("priority", {"priority": Fraction(5, 2)}),
        ("top_logprobs", {"top_logprobs": np.ma.masked}),
        ("bias", {"bias": np.array([1.0, 2.0])}),
        ("bias", {"bias": np.empty((2, 3))}),
        ("bias", {"bias": 5}),
    ],
)
def test_bad_request_values_are_refused_by_name(driver, field, values):
    before = driver.core.unfinished
    with pytest.raises(ArgumentError) as error:
        driver.core.submit(**{"prompt_ids": [1], "max_tokens": 1, **values})
    assert (error.value.contract, error.value.field) == ("Request", field)
    assert driver.core.unfinished == before


def test_request_values_at_their_bounds_are_accepted(driver):
    core = driver.core
    core.submit([0, VOCAB - 1], max_tokens=2**31 - 1, top_k=0, seed=2**64 - 1, temperature=0.0, priority=-8)
    core.submit(np.array([1, 2], np.uint16), max_tokens=1, stop_ids=[1] * 64, presence_penalty=-2.0, priority=7)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("commit", (-1, None)),
        ("commit", ("a", None)),
        ("schedule", ("x",)),
        ("schedule", (2**40,)),
        ("pack", (None,)),
        ("pack_sampler", (2**64,)),
        ("step_done", (-1,)),
        ("finish", (-1, FinishReason.STOP, 0)),
        ("finish", (1, "stop", 0)),
        ("finish", (1, FinishReason.STOP, 2**40)),
        ("abort", (5,)),
        ("abort", ([-1],)),
        ("abort", (["a"],)),
        ("set_verify_curve", (None, [1.0])),
        ("set_verify_curve", ([4, 64], 2.0)),
        ("set_verify_curve", ([4.5, 64.5], [1.0, 2.0])),
        ("set_verify_curve", ([4, 64], [1.0])),
        ("set_cost_model", (None,)),
        ("set_cost_model", ({"base_ns": 1.0},)),
        ("correct", (1, [[1, 1], [1]])),
        ("correct", (1, "ab")),
    ],
)
def test_arguments_that_fit_no_c_type_are_refused(driver, name, arguments):
    before = state(driver)
    with pytest.raises(ArgumentError):
        getattr(driver.core, name)(*arguments)
    assert state(driver) == before


@pytest.mark.parametrize(
    "changes",
    [
        {"max_tokens": "x"},
        {"max_tokens": [1, 2]},
        {"max_tokens": np.array([1, 2])},
        {"max_tokens": float("nan")},
        {"max_tokens": np.float32(2.9)},
        {"seed": Decimal("2.7")},
        {"at_prompt": "yes"},
    ],
)
def test_fork_with_arguments_of_another_type_is_refused(driver, changes):
    driver.step()
    before = state(driver)
    with pytest.raises(ArgumentError):
        driver.core.fork(1, **{"seed": 1, **changes})
    assert state(driver) == before


def test_pairs_of_a_bias_may_be_an_array_and_numbers_those_of_numpy(driver):
    core = driver.core
    core.submit([1], max_tokens=np.int64(3), seed=np.uint64(2**64 - 1), bias=np.array([[1, 2], [3, 4]]))
    core.submit([1], max_tokens=3, temperature=np.float32(0.5), bias=iter([(1, 2.0)]))
    core.submit([1], max_tokens=3, bias=np.empty((0, 2)))
    core.probe()
    core.check()


def test_finish_of_an_unknown_or_ended_request_is_not_found(driver):
    with pytest.raises(NotFoundError):
        driver.core.finish(99, FinishReason.STOP, 0)
    driver.core.finish(1, FinishReason.STOP, 0)
    with pytest.raises(NotFoundError):
        driver.core.finish(1, FinishReason.STOP, 0)


@pytest.mark.parametrize(
    ("reason", "n"), [(FinishReason.NONE, 0), (99, 0), (FinishReason.STOP, 1), (FinishReason.STOP, -1)]
)
def test_finish_with_bad_arguments_is_refused(driver, reason, n):
    with pytest.raises(ArgumentError):
        driver.core.finish(1, reason, n)
    driver.core.check()


# --- configuration -----------------------------------------------------------------------------------------------

BAD_CONFIGS = [
    ("block_size", {"block_size": 0}),
    ("num_blocks", {"num_blocks": 1}),
    ("num_swa_slots", {"num_swa_slots": 1}),
    ("num_state_slots", {"num_state_slots": -1}),
    ("max_num_seqs", {"max_num_seqs": 0}),
    ("max_num_seqs", {"max_num_seqs": 70000, "max_num_batched_tokens": 70000}),
    ("max_num_batched_tokens", {"max_num_batched_tokens": 3, "max_num_seqs": 2}),
    ("max_num_batched_tokens", {"max_num_batched_tokens": 8, "num_draft": 2}),
    ("max_num_batched_tokens", {"max_num_batched_tokens": 90, "chunked_prefill": False}),
    ("max_model_len", {"max_model_len": 0}),
    ("vocab_size", {"vocab_size": 0}),
    ("max_chunk", {"max_chunk": 4, "min_chunk": 5}),
    ("max_chunk", {"max_chunk": 33}),
    ("max_chunk", {"max_chunk": 95, "chunked_prefill": False, "max_num_batched_tokens": 96}),
    ("min_chunk", {"min_chunk": 0}),
    ("chunk_align", {"chunk_align": 0}),
    ("num_draft", {"num_draft": 16, "max_num_batched_tokens": 128}),
    ("depth", {"depth": 3}),
    ("depth", {"depth": 0}),
    ("prefill_interval_all", {"prefill_interval_all": 0}),
    ("prefill_interval_any", {"prefill_interval_any": 0}),
    ("prefill_watermark", {"prefill_watermark": 0.0}),
    ("prefill_watermark", {"prefill_watermark": 1.01}),
    ("prefill_sum_k_limit", {"prefill_sum_k_limit": 95}),
    ("max_prefill_burst", {"max_prefill_burst": -1}),
    ("engine_type", {"engine_type": -1}),
    ("engine_type", {"engine_type": 3}),
    ("stop_preempted", {"engine_type": 2}),
    ("dp_size", {"dp_size": -1}),
    ("window", {"window": -1}),
    ("backtrack", {"backtrack": 0}),
    ("swa_ring", {"swa_ring": 8}),
    ("num_swa_slots", {"num_swa_slots": 0}),
    ("ratios_sparse", {"ratios_sparse": (3,)}),
    ("ratios_dense", {"ratios_dense": (0,)}),
    ("ngram", {"ngram": 17}),
    ("ngram_table", {"ngram": 2}),
    ("ngram_pad", {"ngram_pad": -1}),
    ("max_num_seqs", {"max_num_seqs": 60000, "max_num_batched_tokens": 60000, "max_model_len": 50000}),
]


class Unchecked(CoreConfig):
    """A configuration that Python let pass."""

    def __attrs_post_init__(self):
        return


@pytest.mark.parametrize(("field", "changes"), BAD_CONFIGS)
def test_bad_setting_is_refused_by_python_and_by_the_library(field, changes):
    with pytest.raises(ConfigurationError) as ours:
        small_config(**changes)
    assert (ours.value.field, ours.value.code) == (field, ErrorCode.CONFIG)
    values = {a.name: getattr(small_config(), a.name) for a in attrs.fields(CoreConfig)}
    settings, _keep = to_c(Unchecked(**{**values, **changes}))
    out = ffi.new("di_core **")
    with pytest.raises(ConfigurationError) as theirs:
        check(lib.di_core_create(settings, out, ffi.NULL))
    assert theirs.value.field == field
    assert str(ours.value).split(" is ")[0] == str(theirs.value).split(" is ")[0]


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("prefill_watermark", {"prefill_watermark": "x"}),
        ("ratios", {"ratios_sparse": ("a",)}),
        ("ratios", {"ratios_dense": (1.5,)}),
        ("ngram_table", {"ngram": 2, "ngram_table": np.array([1.5, 2.0])}),
        ("ngram_table", {"ngram": 2, "ngram_table": ["a"]}),
        ("ngram_table", {"ngram": 2, "ngram_table": np.array([2**40])}),
        ("block_size", {"block_size": 4.0}),
    ],
)
def test_setting_of_a_wrong_type_is_refused_by_name(field, changes):
    with pytest.raises(ConfigurationError) as error:
        small_config(**changes)
    assert error.value.field == field


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_draft": 3, "depth": 2},
        {"max_chunk": 8, "prefill_sum_k_limit": 100},
        {"block_size": 8, "max_model_len": 1000, "num_draft": 5},
        {"window": 0, "num_swa_slots": 0},
        {"swa_ring": 40, "backtrack": 9},
        {"ratios_sparse": (4, 1), "ratios_dense": (2, 4)},
    ],
)
def test_derived_values_agree(changes):
    config = small_config(**changes)
    d = derive(config)
    ours = (config.q, config.max_pos, config.max_blocks, config.prompt_limit, config.sum_k_limit, config.ring)
    assert ours == (d.q, d.max_pos, d.max_blocks, d.prompt_limit, d.prefill_sum_k_limit, d.swa_ring)
    assert list(config.ratios) == list(d.ratios)[: d.num_ratios]


def test_wrong_struct_size_is_refused():
    settings, _keep = to_c(small_config())
    settings.struct_size -= 8
    out = ffi.new("di_core **")
    with pytest.raises(ConfigurationError, match="struct_size"):
        check(lib.di_core_create(settings, out, ffi.NULL))


# --- life --------------------------------------------------------------------------------------------------------


def test_closed_core_refuses_and_closing_twice_is_harmless():
    core = Core(small_config())
    core.close()
    core.close()
    with pytest.raises(StaleHandleError):
        core.submit([1], max_tokens=1)
    with pytest.raises(StaleHandleError):
        core.schedule(StepMode.DECODE)


def test_arrays_outlive_a_closed_core():
    driver = Driver(small_config())
    driver.submit([1, 2, 3])
    o = driver.schedule()
    kept = o.seqlens_q
    driver.core.close()
    assert kept.tolist() == [3]


class ClosingLibrary:
    """The library, closed by another thread's hand at the end of a call, before Python has read its result."""

    def __init__(self, name):
        self.name, self.core, self.destroyed = name, None, 0

    def __getattr__(self, name):
        function = getattr(lib, name)

        def call_and_close(*arguments):
            code = function(*arguments)
            self.core.close()
            return code

        return call_and_close if name == self.name and self.core else function

    def di_core_destroy(self, handle):
        self.destroyed += 1
        lib.di_core_destroy(handle)


@pytest.mark.parametrize("name", ["di_schedule", "di_pack", "di_pack_sampler", "di_commit", "di_poll_events"])
def test_close_in_the_middle_of_a_call_leaves_its_result_readable(monkeypatch, name):
    library = ClosingLibrary(name)
    monkeypatch.setattr("deepinfer_native.core.lib", library)
    core = Core(small_config())
    core.submit([1, 2, 3], max_tokens=5)
    library.core = core
    uid = 1
    if name == "di_poll_events":
        core.abort([uid])
        kept = core.poll_events().seq_uid
    elif name == "di_schedule":
        kept = core.schedule(StepMode.TRY_PREFILL).seq_uid
    else:
        core.schedule(StepMode.TRY_PREFILL)
        kept = {
            "di_pack": lambda: core.pack(1).cu_seqlens_q[1:] - 2,
            "di_pack_sampler": lambda: core.pack_sampler(1).sample_pos - 2,
            "di_commit": lambda: core.commit(1, ok_output(1)).seq_uid,
        }[name]()
    assert kept.tolist() == [uid]
    if name not in ("di_pack", "di_pack_sampler"):
        assert library.destroyed == 0  # the array keeps the memory
    library.core = core = None
    del kept
    gc.collect()
    assert library.destroyed == 1


def test_core_with_live_requests_can_be_closed():
    driver = Driver(small_config(depth=2))
    for n in range(9):
        driver.submit([n] * 9, max_tokens=30, stop=())
    for _ in range(6):
        driver.step()
    driver.core.abort([1, 9])
    driver.schedule()
    driver.core.close()


def test_second_engine_thread_is_refused_and_never_waits(driver):
    entered, leave = threading.Event(), threading.Event()

    def occupy():
        with driver.core._gate:
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=occupy)
    thread.start()
    entered.wait(10)
    try:
        with pytest.raises(BusyError):
            driver.core.schedule(StepMode.DECODE)
        driver.core.submit([1], max_tokens=1)  # any thread, any time
    finally:
        leave.set()
        thread.join()


def test_null_arguments_are_refused_by_the_library():
    assert lib.di_schedule(ffi.NULL, 0, ffi.NULL) == ErrorCode.ARG
    assert lib.di_submit(ffi.NULL, ffi.NULL, ffi.NULL) == ErrorCode.ARG
    assert lib.di_config_check(ffi.NULL, ffi.NULL) == ErrorCode.ARG
    lib.di_core_destroy(ffi.NULL)


def test_errors_are_kept_for_each_thread():
    lib.di_schedule(ffi.NULL, 0, ffi.NULL)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(lib.di_last_error().code))
    thread.start()
    thread.join()
    assert seen == [0]
    assert lib.di_last_error().code == ErrorCode.ARG


def test_error_text_names_record_field_and_values():
    error = InternalError("is 3, the bound is 2", contract="Request", field="top_k")
    assert str(error) == "Request.top_k: is 3, the bound is 2"


def test_output_after_a_refused_one_of_another_size_is_read_as_it_is():
    driver = Driver(small_config())
    for seed in range(3):
        driver.submit([1, 2, seed], max_tokens=8, stop=())
    driver.step()
    driver.step()
    step = driver.schedule().step_id
    torn = ok_output(2, sampled_logprob=np.zeros(4, np.float32)[::2])
    with pytest.raises(ContractError, match="sampled_logprob"):
        driver.core.commit(step, torn)
    assert driver.core.commit(step, ok_output(3)).count == 3


@pytest.mark.parametrize("left_out", [0, 1])
def test_output_with_every_field_or_all_but_one_is_shown_whole(left_out):
    writer = OutputWriter()
    names = [m.name for m in members_of("di_sampler_output") if m.is_view and not m.name.endswith("_device")]
    shown = names[left_out:]
    for n in (2, 2, 3):
        struct = writer.fill(SamplerOutput(**{name: np.zeros((n, 2), np.float32) for name in shown}))
        assert [name for name in names if getattr(struct, name).flags] == shown
        assert {getattr(struct, name).shape[0] for name in shown} == {n}


def test_output_of_other_lengths_or_dimensions_is_shown_as_it_is():
    writer = OutputWriter()
    for shape in [(3,), (5,), (5,), (2, 4), (2, 4), (7, 1), (3,)]:
        output = SamplerOutput(sampled_ids=np.zeros(shape, np.int32), row_status=np.zeros(shape, np.int8))
        view = writer.fill(output).sampled_ids
        assert (view.ndim, tuple(view.shape[0 : view.ndim])) == (len(shape), shape)
        assert view.stride[view.ndim - 1] == 1
        assert int(ffi.cast("intptr_t", view.data)) == output.sampled_ids.ctypes.data
