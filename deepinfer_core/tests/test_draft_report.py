"""The report of a run describes what was drafted, verified and accepted."""

from __future__ import annotations

import pytest
from drafting_toys import whole_text
from engine_toys import ids, prompts_of, toy_llm
from verified_toys import SPOILT, verified_llm

from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_core.pipeline.draft_report import DraftReport

pytest.importorskip("torch", reason="the sampler is plain torch")
pytest.importorskip("deepinfer_samplers", reason="the sampler is a plugin")

PROMPTS = prompts_of(4, 6, seed=61)


def params_of(*counts: int) -> list[SamplingParams]:
    return [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, seed=1) for n in counts]


def test_report_of_drafts_that_are_all_right(overlap: bool) -> None:
    with verified_llm(SPOILT["none"], draft_tokens=4) as llm:
        outputs = llm.generate(PROMPTS, params_of(*[21] * 4))
        report = llm.draft_report
    assert ids(outputs) == [whole_text(p, 21)[6:] for p in PROMPTS]
    assert report.draft_tokens == 4
    steps = 20 if overlap else 16  # the last step of a request is in flight when its end is seen
    assert report.verified == report.accepted == (steps,) * 4
    assert report.acceptance == (1.0,) * 4
    assert (report.request_steps, report.output_tokens) == (steps, 80)
    assert report.tokens_per_step == 80 / steps
    assert report.proposed == 4 * (4 + steps)
    assert report.confidence_error == pytest.approx(0.1, abs=1e-4)
    assert "tokens a step" in str(report)
    assert llm.draft_report == report  # also when the engine is closed


def test_report_of_drafts_that_are_all_wrong() -> None:
    with verified_llm(SPOILT["all"], draft_tokens=2, overlap=False) as llm:
        llm.generate(PROMPTS[:1], params_of(11))
        report = llm.draft_report
    assert report.verified[0] == 10
    assert report.accepted == (0, 0)
    assert report.tokens_per_step == 1.0
    assert report.as_record()["verified"] == list(report.verified)


def test_report_without_drafts_is_empty() -> None:
    with toy_llm() as llm:
        llm.generate(PROMPTS, params_of(3, 3, 3, 3))
        report = llm.draft_report
    assert (report.draft_tokens, report.proposed, report.verified) == (0, 0, ())
    assert report.tokens_per_step == 1.0
    assert str(DraftReport(2, 3, (2, 0), (1, 0), 2, 3, None)) == (
        "drafts: 3 proposed, 2 verified, 1 accepted (by place 50%, -), 1.50 tokens a step"
    )
