"""Speculation on the shipped model: however drafts are made and verified, the tokens are those of the run without them.

Greedy requests under any verification, and all requests under the coupled one. The gate runs a few short requests with
one setting of each kind, the nightly more of them with every length.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from e2e_workload import Job, Result, comparable, run_jobs, workload

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.assembly import build
from deepinfer_core.calibration.verify_curve import VerifyCurve

pytestmark = pytest.mark.timeout(300)  # seconds on an idle machine, minutes on a crowded one

SEED = 23
BASE: dict[str, Any] = {"block_size": 16, "max_num_seqs": 16, "verify": "coupled", "seed": 5}
BLOCK = 4
"""Drafts that the shipped model proposes at once."""
CURVE = VerifyCurve(tuple(range(1, 97)), tuple(8.0 + rows for rows in range(1, 97)), ((1, 4, 1.0),), "given")
"""A step has a base and a cost for each row: drafts that are not likely are not worth it."""


def slow(*values: Any) -> list[Any]:
    return [pytest.param(value, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]) for value in values]


class Reference:
    """The results without drafts, made once for each size of the workload."""

    def __init__(self) -> None:
        self.made: dict[int, tuple[list[Job], list[Result]]] = {}

    def of(self, count: int) -> tuple[list[Job], list[Result]]:
        if count not in self.made:
            print(f"seed {SEED}")
            with LLM(**BASE) as llm:
                jobs = workload(
                    count, longest=40, vocab_size=llm.built.vocab_size, limit=llm.built.max_model_len, seed=SEED
                )
                self.made[count] = jobs, comparable(jobs, run_jobs(llm, jobs))
        return self.made[count]


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference()


@pytest.fixture(autouse=True)
def given_curve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "curve_for", lambda *args: CURVE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def check_equal(reference: Reference, count: int, settings: Mapping[str, Any], *, greedy_only: bool = False) -> Any:
    """Run the jobs under ``settings``; returns the core's counters."""
    jobs, wanted = reference.of(count)
    if greedy_only:
        kept = [i for i, job in enumerate(jobs) if job.params.temperature == 0]
        jobs, wanted = [jobs[i] for i in kept], [wanted[i] for i in kept]
    with LLM(**{**BASE, **settings}) as llm:
        found = comparable(jobs, run_jobs(llm, jobs))
        stats = llm.built.engine.core.stats()
        report = llm.draft_report
    different = [i for i, (a, b) in enumerate(zip(wanted, found, strict=True)) if a != b]
    if different:
        first = different[0]
        raise AssertionError(f"requests {different} differ; the first: {wanted[first]} became {found[first]}")
    if not 0 < sum(report.accepted) <= sum(report.verified) <= report.proposed:
        raise AssertionError(f"{report}")
    return stats


@pytest.mark.parametrize("count", [9, *slow(120)])
@pytest.mark.parametrize("draft_tokens", [BLOCK, *slow(1, 2, 3)])
def test_coupled_drafts_change_no_token(reference: Reference, count: int, draft_tokens: int) -> None:
    check_equal(reference, count, {"draft_tokens": draft_tokens})


@pytest.mark.parametrize("count", [9, *slow(120)])
@pytest.mark.parametrize("draft_tokens", [BLOCK, *slow(1, 2, 3)])
def test_rejection_changes_no_greedy_token(reference: Reference, count: int, draft_tokens: int) -> None:
    check_equal(reference, count, {"draft_tokens": draft_tokens, "verify": "rejection"}, greedy_only=True)


@pytest.mark.parametrize("count", [9, *slow(120)])
@pytest.mark.parametrize("overlap", [True, *slow(False)])
def test_lengths_by_confidence_change_no_token(reference: Reference, count: int, overlap: bool) -> None:
    settings = {"draft_tokens": BLOCK, "draft_schedule": "confidence", "overlap": overlap}
    stats = check_equal(reference, count, settings)
    assert stats.tokens_drafted < BLOCK * (stats.tokens_decode - stats.tokens_drafted)


@pytest.mark.parametrize(
    "settings",
    [
        {"deterministic": "batch", "overlap": False, "max_chunk": 7},
        *slow({"max_chunk": 16}, {"overlap": False}, {"max_num_seqs": 1}),
    ],
    ids=str,
)
def test_the_rest_of_the_engine_changes_no_token(reference: Reference, settings: dict[str, Any]) -> None:
    check_equal(reference, 9, {"draft_tokens": BLOCK, **settings})


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [True, False])
def test_preemption_changes_no_token(reference: Reference, overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = build.plan_pools
    monkeypatch.setattr(build, "plan_pools", lambda *args, **more: evolve(planned(*args, **more), num_blocks=10))
    stats = check_equal(reference, 9, {"draft_tokens": BLOCK, "overlap": overlap, "max_num_seqs": 8})
    assert stats.preemptions > 0


@pytest.mark.slow
def test_prefix_hits_give_the_tokens_that_they_give_without_drafts() -> None:
    """One prompt after the other, so that both engines find the same blocks."""
    body = [5 + i * 7 % 900 for i in range(150)]
    prompts = [[*body[:100], *range(40 + i, 60 + i)] for i in range(3)]
    params = [SamplingParams(temperature=t, max_tokens=12, ignore_eos=True, seed=9) for t in (0.0, 0.8, 1.0)]
    runs = []
    for draft_tokens in (0, BLOCK):
        with LLM(**BASE, prefix_cache=True, draft_tokens=draft_tokens) as llm:
            outputs = [llm.generate([prompt], [one])[0] for prompt, one in zip(prompts, params, strict=True)]
        assert all(output.cached_tokens > 0 for output in outputs[1:])
        runs.append([(output.token_ids, output.cached_tokens) for output in outputs])
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    "penalties",
    [
        {"frequency_penalty": 2.0},
        *slow(
            {"frequency_penalty": -2.0}, {"repetition_penalty": 1.5, "presence_penalty": 1.0}, {"logit_bias": {17: 6.0}}
        ),
    ],
    ids=str,
)
def test_penalties_count_drafts_once_at_every_place(penalties: dict[str, Any]) -> None:
    prompts = ["import os", "def main(", "class A"]
    params = [
        SamplingParams(temperature=t, max_tokens=24, ignore_eos=True, seed=3, **penalties) for t in (0.0, 0.0, 0.9)
    ]
    runs = []
    for draft_tokens in (0, BLOCK):
        with LLM(**BASE, draft_tokens=draft_tokens) as llm:
            runs.append([output.token_ids for output in llm.generate(prompts, params)])
    assert runs[0] == runs[1]


@pytest.mark.slow
def test_drafts_of_requests_that_end_at_different_times() -> None:
    prompts = [[3 + (i * 37 + j * 11) % 800 for j in range(2 + i)] for i in range(16)]
    params = [SamplingParams(temperature=0, max_tokens=i + 1, ignore_eos=True) for i in range(16)]
    with LLM(**{**BASE, "max_num_seqs": 4}) as llm:
        wanted = [output.token_ids for output in llm.generate(prompts, params)]
    with LLM(**{**BASE, "max_num_seqs": 4}, draft_tokens=BLOCK) as llm:
        outputs = llm.generate(prompts, params)
    assert [output.token_ids for output in outputs] == wanted
    for output in outputs:
        completion = output.outputs[0]
        assert completion.accepted_tokens <= min(completion.drafted_tokens, len(output.token_ids))


@pytest.mark.parametrize("draft_tokens", [5, 16, -1])
def test_draft_length_beyond_the_block_is_refused_with_its_limit(run: Any, draft_tokens: int) -> None:
    result = run("generate", "--backend", "cpu", "--draft-tokens", draft_tokens, "import")
    assert result.status == 2
    assert result.out == ""
    assert ("the limit of this model is 4" if draft_tokens == 5 else "an integer from 0 to 15") in result.err


def test_command_reports_what_was_drafted(run: Any) -> None:
    result = run("generate", "--backend", "cpu", "--draft-tokens", 4, "--temperature", 0, "--max-tokens", 12, "import")
    plain = run("generate", "--backend", "cpu", "--temperature", 0, "--max-tokens", 12, "import")
    assert result.status == 0, result.err
    assert result.out == plain.out
    assert "deepinfer: drafts: " in result.err
    assert "tokens a step" in result.err
