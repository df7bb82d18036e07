"""Predicted times and time budgets against the plain reference (``spec/engine.md`` 2.8)."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from native_driver import Driver, require, small_config

from deepinfer_contracts import StepFlags, StepKind
from deepinfer_native import AttentionKind, CostModel, CostRow
from deepinfer_native import reference_cost as reference
from deepinfer_native.errors import ArgumentError, ConfigurationError, OrderError

FIXED = settings(derandomize=True, deadline=None, max_examples=60)
LONG = 131_072

times = st.floats(0, 2.0**20, allow_nan=False)
small_times = st.sampled_from([0.0, 0.001, 0.25, 1.0, 3.7, 1000.0])
kinds = st.builds(
    AttentionKind,
    ratio=st.sampled_from([1, 2, 4, 128, 65536]),
    cap=st.sampled_from([0, 1, 8, 128, 512, 2**31 - 1]),
    shift=st.booleans(),
    block=st.sampled_from([1, 2, 8, 65536]),
    pair_ns=st.one_of(times, small_times),
    kept=st.booleans(),
)
models = st.builds(
    CostModel,
    base_ns=st.floats(0, 2.0**30),
    seq_ns=st.floats(0, 2.0**30),
    row_ns=st.floats(0, 2.0**30),
    kept_ns=times,
    logit_ns=times,
    attention=st.lists(kinds, max_size=3),
    keep=st.sampled_from([0, 1, 140, 5000]),
)


@st.composite
def row(draw, most=3000):
    start = draw(st.one_of(st.integers(0, 300), st.integers(0, LONG)))
    q = draw(st.integers(1, most))
    full = draw(st.one_of(st.just(0), st.integers(start + q, start + q + 300)))
    return CostRow(start, q, full, draw(st.integers(0, start + 5)), draw(st.integers(0, 6)))


@given(models, st.lists(row(), max_size=4))
@FIXED
def test_prediction_equals_the_reference(model, rows):
    assert model.predict_ns(rows) == reference.predict_ns(model, rows)


@given(kinds, st.integers(0, 500), st.integers(1, 500), st.integers(0, 600))
@FIXED
def test_pairs_in_python_equal_the_loop(kind, start, q, valid_start):
    expected = reference.pairs(kind, CostRow(start, q, start + q, valid_start))
    assert kind.pairs(start, start + q, valid_start) == expected


def test_prediction_of_a_whole_long_context_equals_the_reference():
    model = CostModel(
        base_ns=20_000,
        row_ns=3.5,
        kept_ns=2.25,
        logit_ns=11,
        keep=140,
        attention=[
            AttentionKind(1, 128, True, 1, 0.011),
            AttentionKind(2, 512, pair_ns=0.02),
            AttentionKind(1, 0, pair_ns=0.0009),
            AttentionKind(2, 64, block=8, pair_ns=0.0031),
        ],
    )
    rows = [CostRow(0, LONG, LONG), CostRow(LONG - 6, 6, LONG, 900, 6)]
    assert model.predict_ns(rows) == reference.predict_ns(model, rows)


def test_prediction_at_the_largest_values_stops_at_the_largest_integer():
    kind = AttentionKind(1, 0, False, 1, 2.0**20)
    model = CostModel(base_ns=2.0**30, seq_ns=2.0**30, row_ns=2.0**20, attention=[kind] * 8)
    assert model.predict_ns([CostRow(0, 2**31 - 1, 2**31 - 1)] * 5) == 2**63 - 1


def test_prediction_of_a_long_row_with_wide_blocks_does_not_overflow():
    kind = AttentionKind(65536, 2**31 - 1, False, 65536, 1.0)
    end = 2**31 - 1
    # ceil(floor(t / 65536) / 65536) is 0 below 65536 and 1 from there on
    assert CostModel(attention=[kind]).predict_ns([CostRow(0, end, end)]) == 65536 * (end - 65535)


@given(models, st.lists(row(60), max_size=2), row(200), st.integers(1, 40), st.floats(0, 1.2))
@FIXED
def test_largest_chunk_equals_trying_all(model, rows, following, min_chunk, share):
    budget = int(model.predict_ns([*rows, following]) * share)
    got = model.largest_chunk(rows, following, budget_ns=budget, min_chunk=min_chunk)
    assert got == reference.largest_chunk(model, rows, following, budget, min_chunk)


@given(st.floats(1 / 1024, 1024), st.floats(0.5, 2))
@example(1024.0, 1.0)
@example(1 / 1024, 1.0)
@FIXED
def test_tenth_root_is_the_power(ratio, factor):
    assert reference.tenth_root(ratio) == pytest.approx(ratio**0.1, rel=1e-14)
    moved = reference.next_factor(factor, 1_000_000, max(1, round(1_000_000 * ratio)))
    assert 0.5 <= moved <= 2


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"attention": [AttentionKind(0)]}, "kind.ratio"),
        ({"attention": [AttentionKind(1, -1)]}, "kind.cap"),
        ({"attention": [AttentionKind(1, block=0)]}, "kind.block"),
        ({"attention": [AttentionKind(1, pair_ns=2.0**29)]}, "kind.pair"),
        ({"keep": -1}, "keep"),
        ({"row_flops": -1.0}, "flops"),
        ({"logit_flops": float("nan")}, "flops"),
        ({"attention": [AttentionKind(1, pair_flops=float("inf"))]}, "kind.flops"),
        ({"attention": [AttentionKind(1)] * 9}, "attention"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_set_cost_model_outside_its_bounds_names_the_coefficient(change, field):
    core = Driver(small_config()).core
    with pytest.raises(ArgumentError) as refused:
        core.set_cost_model(CostModel(**change))
    assert refused.value.field == field


@pytest.mark.parametrize("value", [float("nan"), -1.0, 2.0**31, "fast"])
def test_cost_model_with_a_time_that_is_none_is_refused(value):
    with pytest.raises(ArgumentError):
        CostModel(base_ns=value)


@pytest.mark.parametrize("field", ["target_itl_ns", "prefill_step_ns"])
def test_config_with_a_negative_time_names_the_field(field):
    with pytest.raises(ConfigurationError) as refused:
        small_config(**{field: -1})
    assert refused.value.field == field


# --- in the core -------------------------------------------------------------------------------------------------

MODEL = CostModel(
    base_ns=1000,
    row_ns=100,
    logit_ns=10,
    attention=[AttentionKind(1, pair_ns=1, pair_flops=1.5e9), AttentionKind(1, 8, True, pair_flops=2e8, kept=True)],
    keep=9,
    kept_flops=3e9,
)
DECODE = CostModel(
    base_ns=500,
    seq_ns=50,
    row_ns=7,
    logit_ns=3,
    attention=[AttentionKind(1, 8, True, pair_flops=3e7), AttentionKind(2, 5, False, 2, pair_flops=1e8)],
    keep=4,
    row_flops=2e9,
    kept_flops=7e9,
    logit_flops=1e10,
)


def budgeted(**changes):
    values = {
        "target_itl_ns": 4_000,
        "prefill_step_ns": 9_000,
        "max_model_len": 200,
        "max_num_batched_tokens": 64,
        "prefill_interval_all": 1,
        "max_prefill_burst": 1,
    }
    values |= {"replay_mode": "compact", "replay_keep": MODEL.keep}
    driver = Driver(small_config(**{**values, **changes}))
    driver.core.set_cost_model(MODEL, decode=DECODE)
    return driver


def rows_of(driver, o, kind):
    """The cost rows of a record."""
    is_prefill = kind == StepKind.PREFILL
    prompts = [len(driver.follower.requests[uid].prompt) for uid in o.seq_uid.tolist()]
    full = [max(n, driver.config.replay_keep) if driver.config.replay_mode == "compact" else 0 for n in prompts]
    return [
        CostRow(k - q, q, full if is_prefill else k, valid, 1 if is_prefill else q)
        for q, k, full, valid in zip(
            o.seqlens_q.tolist(), o.seqlens_k.tolist(), full, o.swa_valid_start.tolist(), strict=True
        )
    ]


def checked_step(driver, factors=(1 << reference.FRACTION,) * 2):
    o = driver.step()
    if o.num_reqs:
        kind = StepKind(o.kind)
        model = MODEL if kind == StepKind.PREFILL else DECODE
        expected = reference.predict_ns(model, rows_of(driver, o, kind), factors[kind])
        require(o.predicted_ns == expected, "predicted", o.predicted_ns, expected)
        flops = (o.flops_attn, o.flops_total)
        require(flops == reference.tera_flops(model, rows_of(driver, o, kind)), "flops", flops)
        require(flops[0] > 0, "no attention")
    return o


def test_prefill_alone_is_cut_by_the_step_budget():
    driver = budgeted()
    driver.submit(range(1, 60), max_tokens=3)
    first = checked_step(driver)
    # 1000 + 100 q + 10 + q (q + 1) / 2 <= 9000 up to q = 61; a multiple of chunk_align below the whole prompt of 59
    assert (first.budget_ns, first.seqlens_q.tolist(), first.flags & StepFlags.BUDGET_OVERRUN) == (9_000, [59], 0)


def test_prefill_beside_a_running_request_leaves_time_for_the_decode():
    driver = budgeted()
    driver.submit(range(1, 4), max_tokens=40, stop=())
    driver.step()
    driver.submit(range(1, 60), max_tokens=3)
    while not (o := checked_step(driver)).num_reqs or o.kind != StepKind.PREFILL:
        pass
    # decode of one request: 500 + 50 + 7 + 3; then 1000 + 100 q + 10 + q (q + 1) / 2 <= 3440 up to q = 21, aligned 20
    assert (o.budget_ns, o.seqlens_q.tolist()) == (3_440, [20])


@given(st.integers(1, 12_000), st.integers(1, 12_000), st.lists(st.integers(1, 150), min_size=1, max_size=6))
@settings(FIXED, max_examples=25)
def test_chunks_with_any_budget_stay_within_it_or_are_the_smallest(itl, step_ns, lengths):
    driver = budgeted(target_itl_ns=itl, prefill_step_ns=step_ns, num_blocks=300)
    for i, length in enumerate(lengths):
        driver.submit([(i + j) % 50 + 1 for j in range(length)], max_tokens=4)
    overruns = 0
    for _ in range(3000):
        if not driver.core.unfinished:
            break
        o = checked_step(driver)
        if o.num_reqs and o.kind == StepKind.PREFILL:
            require(o.budget_ns > 0, "no budget")
            is_over = o.predicted_ns > o.budget_ns
            require(bool(o.flags & StepFlags.BUDGET_OVERRUN) == is_over, "flag")
            require(not is_over or o.seqlens_q.tolist() == [1], "an overrun of more than the smallest chunk")
            overruns += is_over
    driver.run()
    driver.require_expected()
    assert driver.core.stats().budget_overruns == overruns


def test_chunks_behind_a_prefix_hit_cost_their_own_window():
    driver = budgeted(prefix_cache=True, prefill_step_ns=4_000)
    model = CostModel(base_ns=1000, row_ns=100, attention=[AttentionKind(1, 8, True, pair_ns=9)])
    driver.core.set_cost_model(model, decode=DECODE)
    prompt = [i % 60 for i in range(60)]
    driver.submit(prompt, max_tokens=1)
    driver.run()
    driver.submit([*prompt, *range(1, 50)], max_tokens=1)
    starts = []
    while driver.core.unfinished:
        o = driver.step()
        if o.num_reqs and o.kind == StepKind.PREFILL:
            starts += o.swa_valid_start.tolist()
            rows = rows_of(driver, o, StepKind.PREFILL)
            require(o.predicted_ns == reference.predict_ns(model, rows), "predicted", o.predicted_ns)
            require(o.predicted_ns <= 4_000, "over the budget")
    assert len(starts) > 1
    assert min(starts) > 0


def test_whole_prompts_that_do_not_fit_the_budget_run_alone_without_chunked_prefill():
    driver = budgeted(chunked_prefill=False, max_num_batched_tokens=256)
    for _ in range(3):
        driver.submit(range(1, 60), max_tokens=20, stop=())
    sizes = []
    while driver.core.unfinished:
        o = checked_step(driver)
        if o.num_reqs and o.kind == StepKind.PREFILL:
            sizes.append((o.num_reqs, bool(o.flags & StepFlags.BUDGET_OVERRUN)))
    assert sizes == [(1, False), (1, True), (1, True)]


def test_a_core_without_a_model_predicts_nothing():
    driver = Driver(small_config(target_itl_ns=1, prefill_step_ns=1))
    driver.submit(range(1, 20), max_tokens=2)
    o = driver.step()
    assert (o.predicted_ns, o.budget_ns, o.seqlens_q.tolist()) == (0, 0, [19])
    assert (o.flops_attn, o.flops_total) == (0, 0)


def test_observe_step_without_feedback_changes_nothing():
    driver = budgeted(cost_feedback=False)
    driver.submit(range(1, 4), max_tokens=20, stop=())
    for _ in range(10):
        o = checked_step(driver)
        driver.core.observe_step(o.step_id, o.predicted_ns * 9)


def test_feedback_moves_each_kind_as_the_reference_does():
    driver = budgeted(cost_feedback=True)
    driver.submit(range(1, 4), max_tokens=30, stop=())
    driver.submit([i % 60 for i in range(150)], max_tokens=30, stop=())
    factors = {StepKind.DECODE: 1.0, StepKind.PREFILL: 1.0}
    seen = set()
    for i in range(40):
        o = checked_step(driver, {k: reference.fixed_factor(f) for k, f in factors.items()})
        kind = StepKind(o.kind)
        measured = max(1, int(o.predicted_ns * (3.1 if kind == StepKind.PREFILL else 0.4) * (1 + i % 3)))
        driver.core.observe_step(o.step_id, measured)
        factors[kind] = reference.next_factor(factors[kind], o.predicted_ns, measured)
        seen.add(kind)
    assert seen == set(factors)
    assert factors[StepKind.PREFILL] > 1.2
    assert factors[StepKind.DECODE] < 0.99


def test_observe_step_of_a_step_that_is_not_committed_is_refused():
    driver = budgeted(depth=2)
    driver.submit(range(1, 4), max_tokens=20, stop=())
    for _ in range(3):
        o = driver.step()
    assert driver.open
    with pytest.raises(OrderError):
        driver.core.observe_step(o.step_id, 10)
    with pytest.raises(OrderError):
        driver.core.observe_step(0, 10)
    with pytest.raises(ArgumentError):
        driver.core.observe_step(o.step_id - 1, 0)
