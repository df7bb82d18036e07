"""``--draft-schedule confidence``: the curve is measured and kept, the lengths follow it, the tokens never change."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from drafting_toys import whole_text
from engine_toys import check_idle, ids, prompts_of
from verified_toys import SPOILT, verified_llm

from deepinfer_core.assembly import build
from deepinfer_core.calibration.verify_curve import VerifyCurve, curve_of, load, points_to_measure
from deepinfer_core.parameters.sampling_params import SamplingParams

pytest.importorskip("torch", reason="the sampler is plain torch")
pytest.importorskip("deepinfer_samplers", reason="the sampler is a plugin")

PROMPTS = prompts_of(5, 7, seed=51)
COUNTS = (9, 1, 30, 17, 23)


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "deepinfer" / "profiles"


@pytest.fixture
def given_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of measuring: a step costs as much as its rows, beyond a base."""
    curve = VerifyCurve(tuple(range(1, 97)), tuple(4.0 + rows for rows in range(1, 97)), ((1, 4, 1.0),), "given")
    monkeypatch.setattr(build, "curve_for", lambda *args: curve)


def params_of(*, temperature: float = 0.0) -> list[SamplingParams]:
    return [
        SamplingParams(temperature=temperature, max_tokens=n, ignore_eos=True, seed=i) for i, n in enumerate(COUNTS)
    ]


@pytest.mark.usefixtures("overlap", "given_curve")
@pytest.mark.parametrize("spoil", list(SPOILT))
@pytest.mark.parametrize("with_confidence", [True, False])
def test_greedy_tokens_with_lengths_by_confidence(spoil: str, with_confidence: bool) -> None:
    settings = {"draft_tokens": 4, "draft_schedule": "confidence", "max_num_seqs": 4}
    with verified_llm(SPOILT[spoil], with_confidence=with_confidence, **settings) as llm:
        assert llm.built.engine.core.config.verify_lengths == "confidence"
        outputs = llm.generate(PROMPTS, params_of())
        check_idle(llm)
    assert [output.error for output in outputs] == [None] * 5
    assert ids(outputs) == [whole_text(p, n)[len(p) :] for p, n in zip(PROMPTS, COUNTS, strict=True)]


@pytest.mark.usefixtures("overlap", "given_curve")
def test_coupled_tokens_with_lengths_by_confidence() -> None:
    params = params_of(temperature=0.9)
    with verified_llm(verify="coupled") as llm:
        plain = ids(llm.generate(PROMPTS, params))
    settings = {"draft_tokens": 5, "draft_schedule": "confidence", "deterministic": "batch", "max_num_seqs": 4}
    with verified_llm(SPOILT["in rotation"], **settings) as llm:
        assert ids(llm.generate(PROMPTS, params)) == plain
        check_idle(llm)


@pytest.mark.usefixtures("overlap", "given_curve")
def test_drafts_that_are_never_accepted_are_hardly_verified() -> None:
    def drafted(curve: tuple[list[int], list[float]]) -> int:
        settings = {"draft_tokens": 4, "draft_schedule": "confidence", "deterministic": "batch"}
        with verified_llm(SPOILT["all"], **settings) as llm:
            core = llm.built.engine.core
            core.set_verify_curve(*curve)
            llm.generate(PROMPTS[:1], params_of()[2:3])
            return int(core.stats().tokens_drafted)

    dear = (list(range(1, 81)), [float(rows) for rows in range(1, 81)])
    cheap = ([80], [1.0])
    assert drafted(dear) < 20 < 80 < drafted(cheap)


def test_curve_is_measured_once_and_read_again(cache_home: Path) -> None:
    settings = {"draft_tokens": 2, "draft_schedule": "confidence", "max_num_seqs": 2}
    with verified_llm(**settings) as llm:
        (note,) = llm.built.notes
    (path,) = cache_home.glob("*.json")
    assert "measured in" in note
    assert f"kept in {path}" in note
    measured = json.loads(path.read_text("utf-8"))
    assert set(map(int, measured["measured"])) >= {1, 2, 3, 6}
    assert measured["sizes"] == list(range(1, 7))
    with verified_llm(**settings) as llm:
        assert f"read from {path}" in llm.built.notes[0]
    with verified_llm(**{**settings, "draft_tokens": 1}) as llm:
        assert "measured in" in llm.built.notes[0]
    path.write_text("{}", "utf-8")
    with verified_llm(**settings) as llm:
        assert "measured in" in llm.built.notes[0]


@pytest.mark.usefixtures("given_curve")
def test_steps_correct_the_curve_unless_the_engine_is_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    def observed(**settings: Any) -> list[tuple[Any, ...]]:
        calls: list[tuple[Any, ...]] = []
        with verified_llm(draft_tokens=3, draft_schedule="confidence", **settings) as llm:
            monkeypatch.setattr(llm.built.engine.core, "observe_verify", lambda *a: calls.append(a))
            llm.generate(PROMPTS, params_of())
        return calls

    calls = observed()
    assert calls
    assert all(size >= 1 and 1 <= n <= 5 and forward > 0 and behind > 0 for size, n, forward, behind in calls)
    assert observed(deterministic="batch") == []


def test_points_cover_every_length_of_one_sequence_and_blocks_of_several() -> None:
    assert points_to_measure(3, 4, 10_000) == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 8), (4, 16)]
    assert points_to_measure(1, 64, 40) == [(1, 1), (1, 2), (2, 4)]


def test_curve_between_and_beyond_the_measured_sizes() -> None:
    sizes, ms = curve_of({1: 10.0, 2: 9.0, 4: 12.0, 8: 20.0}, 200)
    assert sizes[:64] == tuple(range(1, 65))
    assert sizes[-1] == 200
    assert ms[:8] == pytest.approx([10, 10, 11, 12, 14, 16, 18, 20])
    assert ms[9] == pytest.approx(20 + 2 * 10 / 7)
    assert all(a <= b for a, b in itertools.pairwise(ms))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"sizes": [1, 2], "ms": [1.0], "sampling": []}',
        '{"sizes": [2, 1], "ms": [1, 1], "sampling": []}',
        '{"sizes": [1, 4], "ms": [1, NaN], "sampling": []}',
        '{"sizes": [1, 4], "ms": [1, -1], "sampling": []}',
        '{"sizes": [1, 2], "ms": [1, 1], "sampling": []}',
        '{"sizes": [1, 4], "ms": [1, 1], "sampling": [[0, 1, 2]]}',
    ],
)
def test_file_that_holds_no_curve_is_measured_again(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, "utf-8")
    assert load(path, 4) is None
    path.write_text('{"sizes": [1, 4], "ms": [1, 2], "sampling": [[1, 4, 0.5]]}', "utf-8")
    assert load(path, 4) == VerifyCurve((1, 4), (1.0, 2.0), ((1, 4, 0.5),))
