"""Step times: what is measured, how it is fitted, where it is kept, and what the engine does with it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from engine_toys import check_idle, ids, prompts_of, solo_tokens, toy_llm

from deepinfer_core.calibration.budget import TimeBudget, attention_kinds
from deepinfer_core.calibration.fit import MAX_COLUMNS, fit, nonnegative_least_squares
from deepinfer_core.calibration.measure import Point, Stopwatch, measure
from deepinfer_core.calibration.plan import Batch, batches_of, chunks_of
from deepinfer_core.calibration.profile import Profile, load, profile_key, save
from deepinfer_core.errors import ConfigError, EngineError
from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_core.requests.prompts import inputs_of
from deepinfer_core.types import SchedulerHints
from deepinfer_native import AttentionKind, CostModel, CostRow

PROFILE = Profile(
    CostModel(base_ns=5e6, seq_ns=1e6, row_ns=2e5, attention=(AttentionKind(2, 64, False, 8, 0.25),)),
    CostModel(base_ns=2e6, seq_ns=3e5),
    40,
    0.05,
    0.07,
)


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "deepinfer" / "profiles"


# --- fit ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_least_squares_meets_the_optimality_conditions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = rng.random((30, 6)) * rng.choice([1e-6, 1.0, 1e6], 6)
    b = a @ (rng.random(6) * (rng.random(6) < 0.6) / a.mean(axis=0)) + rng.normal(0, 0.3, 30)
    x = nonnegative_least_squares(a, b)
    gradient = (a @ x - b) @ (a / np.linalg.norm(a, axis=0))
    assert (x >= 0).all()
    assert np.abs(gradient[x > 0]).max(initial=0) < 1e-6
    # A column that was left out may lower the residual by at most the share that counts as noise.
    assert (gradient[x == 0] > -0.05 * np.linalg.norm(b)).all()


def test_least_squares_with_too_many_columns_is_refused() -> None:
    with pytest.raises(ValueError, match="13 columns"):
        nonnegative_least_squares(np.ones((3, MAX_COLUMNS + 1)), np.ones(3))


def test_fit_of_exact_times_finds_the_coefficients() -> None:
    kinds = [AttentionKind(1, 128, True), AttentionKind(2), AttentionKind(2, 512)]
    true = CostModel(base_ns=40_000, seq_ns=9_000, row_ns=700, attention=[AttentionKind(2, pair_ns=3.0)])
    points = []
    for n, q, end in [(1, q, end) for q in (8, 32, 128, 512) for end in (600, 1200, 2048)] + [(4, 16, 16), (8, 16, 16)]:
        ns = 40_000 + n * (9_000 + 700 * q + 3 * kinds[1].pairs(end - q, end))
        points.append(Point("prefill", n, q, end, ns))
    model, error = fit(points, kinds)
    assert error < 1e-9
    assert [k.ratio for k in model.attention] == [2]
    got = (model.base_ns, model.seq_ns, model.row_ns, model.attention[0].pair_ns)
    assert got == pytest.approx((true.base_ns, true.seq_ns, true.row_ns, 3.0), rel=1e-6)


def test_fit_tells_the_rows_of_both_halves_apart() -> None:
    """The same chunks with all rows in the decoder half, and with the last 140 of a prompt of 2049 tokens alone."""
    hints = SchedulerHints(window=128, ratios_sparse=(1, 2), index_topk=64)
    kinds = attention_kinds(hints, bounded=True)
    attention = [AttentionKind(1, pair_ns=2.0, kept=True), AttentionKind(2, pair_ns=1.0)]
    true = CostModel(base_ns=50_000, seq_ns=3_000, row_ns=700, kept_ns=1_100, attention=attention, keep=140)
    points = []
    for q in (8, 32, 128, 512):
        for end in (600, 1200, 2000, 2048):
            for full in (0, 2049):
                points.append(Point("prefill", 1, q, end, true.predict_ns([CostRow(end - q, q, full)]), full))
    points += [Point("prefill", n, 16, 16, true.predict_ns([CostRow(0, 16, 16)] * n), 16) for n in (2, 4, 8)]
    model, error = fit(points, kinds, 140)
    assert error < 1e-5
    assert model.keep == 140
    for row in (CostRow(0, 256, 3000), CostRow(2800, 200, 3000), CostRow(500, 100, 0)):
        assert model.predict_ns([row]) == pytest.approx(true.predict_ns([row]), rel=1e-3)


def test_fit_of_steps_whose_time_goes_with_few_pairs_stays_within_the_core() -> None:
    kinds = [AttentionKind(64), AttentionKind(1, 4, True)]
    points = [Point("decode", 1, 1, end, 5_000_000 * kinds[0].pairs(end - 1, end) + 1) for end in (64, 128, 200)]
    model, _ = fit(points, kinds)
    assert model.predict_ns([CostRow(63, 1, 64)]) > 0
    assert all(kind.pair_ns <= 2**20 for kind in model.attention)


def test_fit_of_steps_that_take_minutes_stays_within_the_core() -> None:
    points = [Point("prefill", 1, q, q, 10**11 + q) for q in (4, 16, 64)]
    model, _ = fit(points, [AttentionKind(1)])
    assert model.predict_ns([CostRow(0, 4, 4)]) > 10**9


# --- plan --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "largest"), [(2048, 4096), (2048, 256), (120, 4096), (40, 16), (3, 8), (55, 1), (55, 3), (8, 2)]
)
def test_chunks_fill_the_limit_and_no_step(limit: int, largest: int) -> None:
    chunks = chunks_of(limit, largest)
    assert sum(chunks) <= limit
    assert all(1 <= size <= largest for size in chunks)


def test_chunks_of_a_long_context_span_both_axes() -> None:
    chunks = chunks_of(2048, 4096)
    ends = np.cumsum(chunks)
    points = {(size, int(end)) for size, end in zip(chunks, ends, strict=True)}
    assert len(points) >= 24
    assert max(chunks) >= 50 * min(chunks)
    assert ends[-1] > 2000
    assert sum(end < 700 for end in ends) >= 4


def test_batches_stay_within_the_caches() -> None:
    assert all(b.n <= 3 and b.n * (b.length + 1) <= 100 for b in batches_of(90, 3, 100))
    assert Batch(8, 16) in batches_of(2048, 256, 10_000)


def test_measure_of_a_step_that_was_not_planned_says_so() -> None:
    class Core:
        def set_cost_model(self, model: CostModel) -> None:
            pass

    watch = Stopwatch(Core())

    def run(prompts: list[list[int]], tokens: int) -> None:
        watch.step("prefill", 1, 7, 0.001)

    with pytest.raises(EngineError, match="a chunk of 4 tokens came out as a prefill step of 1 requests and 7 tokens"):
        measure(watch, run, [4], [], 1)


# --- profile -----------------------------------------------------------------------------------------------------


def test_profile_read_back_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "p.json"
    save(path, PROFILE, {"host": "a"}, [Point("prefill", 1, 8, 8, 5)])
    assert load(path) == PROFILE
    assert [f.name for f in path.parent.iterdir()] == ["p.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"prefill": {}}', '{"prefill": {"base_ns": -1}, "decode": {}}'])
def test_profile_that_is_none_reads_as_absent(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text, "utf-8")
    assert load(path) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (("points",), float("inf")),
        (("prefill", "row_ns"), float("nan")),
        (("prefill", "attention"), [{"ratio": "x"}]),
        (("prefill", "attention"), [{"ratio": -1}]),
        (("prefill", "attention"), [{"ratio": 1}] * 50),
        (("decode", "keep"), 0.5),
    ],
)
def test_profile_with_a_damaged_value_reads_as_absent(tmp_path: Path, field: tuple[str, ...], value: object) -> None:
    path = tmp_path / "p.json"
    save(path, PROFILE, {}, [])
    record = json.loads(path.read_text("utf-8"))
    holder = record
    for key in field[:-1]:
        holder = holder[key]
    holder[field[-1]] = value
    path.write_text(json.dumps(record), "utf-8")
    assert load(path) is None


def test_profile_that_is_nested_too_deep_reads_as_absent(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text("[" * 100_000, "utf-8")
    assert load(path) is None


def test_key_changes_with_every_fact() -> None:
    facts = {"model": "a", "plugins": {"backend": "cpu 0.1"}, "host": "x"}
    keys = {profile_key(facts), *(profile_key({**facts, name: "other"}) for name in facts)}
    assert len(keys) == 4
    assert profile_key(dict(reversed(facts.items()))) == profile_key(facts)


def test_kinds_follow_the_hints() -> None:
    hints = SchedulerHints(window=128, ratios_sparse=(1, 2), ratios_dense=(2,), index_topk=512)
    found = [(k.ratio, k.cap, k.shift) for k in attention_kinds(hints)]
    assert found == [(1, 128, True), (1, 0, False), (2, 0, False), (1, 512, False), (2, 512, False)]


def test_kinds_of_a_bounded_engine_count_the_finest_keys_of_kept_rows_too() -> None:
    hints = SchedulerHints(window=128, ratios_sparse=(1, 2), index_topk=512)
    kept = [(k.ratio, k.cap, k.shift) for k in attention_kinds(hints, bounded=True) if k.kept]
    assert kept == [(1, 128, True), (1, 0, False), (1, 512, False)]


def test_smallest_chunk_is_the_one_that_costs_as_much_as_its_step() -> None:
    settings = TimeBudget(PROFILE, "", 50).settings(4096)
    assert settings == {
        "target_itl_ns": 50_000_000,
        "prefill_interval_all": 1,
        "max_prefill_burst": 1,
        "min_chunk": 30,
    }


# --- engine ------------------------------------------------------------------------------------------------------


def test_target_measures_once_and_then_reads(cache_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = prompts_of(3, 40)
    outputs = []
    for _ in range(2):
        with toy_llm(target_itl_ms=60_000) as llm:
            outputs.append(ids(llm.generate(prompts, SamplingParams(max_tokens=6, temperature=0))))
            check_idle(llm)
    assert outputs == [[solo_tokens(p, 6) for p in prompts]] * 2
    (path,) = cache_home.iterdir()
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("deepinfer: target 60000 ms between decode steps; step times measured in ")
    assert first.endswith(f", kept in {path}")
    assert second == f"deepinfer: target 60000 ms between decode steps; step times read from {path}"
    record = json.loads(path.read_text("utf-8"))
    assert len({(p["q"], p["end"]) for p in record["measured"] if p["kind"] == "prefill"}) >= 24


def test_target_with_a_cache_directory_that_cannot_be_made_still_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with toy_llm(target_itl_ms=60_000) as llm:
        assert ids(llm.generate([[1, 2, 3]], SamplingParams(max_tokens=2, temperature=0))) == [
            solo_tokens([1, 2, 3], 2)
        ]
    assert ", not kept: " in capsys.readouterr().err


class Count:
    """A step observer that counts."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self, kind: str, num_reqs: int, num_tokens: int, seconds: float) -> None:
        self.steps += 1


def test_a_small_target_cuts_a_prompt_that_arrives_while_another_decodes() -> None:
    tokens, chunks = {}, {}
    for target in (None, 1):
        with toy_llm(target_itl_ms=target, max_num_seqs=4) as llm:
            count = Count()
            llm.built.engine.meter.observers.append(count)
            params = [SamplingParams(max_tokens=n, temperature=0, ignore_eos=True) for n in (40, 2)]
            inputs = inputs_of([prompts_of(1, 5)[0], prompts_of(1, 200, 2)[0]], params)
            run = llm.run(inputs, is_ready=lambda count=count: count.steps > 4)
            tokens[target] = {r.index: list(r.token_ids) for r in run if r.finished}
            chunks[target] = llm.built.engine.core.stats().steps_prefill - 1
    assert tokens[None] == tokens[1]
    # A millisecond holds no 200 rows of the toy model.
    assert chunks[None] == 1
    assert chunks[1] > 1


@pytest.mark.parametrize("largest", [1, 3])
def test_target_with_tiny_chunks_measures_within_them(largest: int) -> None:
    with toy_llm(target_itl_ms=60_000, max_chunk=largest, max_model_len=64) as llm:
        prompt = prompts_of(1, 9)[0]
        assert ids(llm.generate([prompt], SamplingParams(max_tokens=3, temperature=0))) == [solo_tokens(prompt, 3)]


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"chunked_prefill": False}, "target_itl_ms is 5, but chunked_prefill is off"),
        ({"max_model_len": 8}, "target_itl_ms is 5, but sequences of 8 tokens are too short for it"),
    ],
)
def test_target_that_no_chunk_could_keep_is_refused(settings: dict[str, object], what: str, cache_home: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        toy_llm(target_itl_ms=5, **settings)
    assert caught.value.what == what
    assert "--target-itl-ms" in caught.value.remedy
    assert not cache_home.exists()


def test_without_a_target_nothing_is_measured(cache_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with toy_llm() as llm:
        assert llm.built.notes == ()
    assert (cache_home.exists(), capsys.readouterr().err) == (False, "")
