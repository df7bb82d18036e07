"""Answers in grammars on the shipped model, with the installed grammar engine and the canonical sampler."""

from __future__ import annotations

import importlib.util
import json
import re
from typing import Any

import pytest

from deepinfer_core import LLM, SamplingParams

if importlib.util.find_spec("xgrammar") is None:  # importing it by itself wants transformers
    pytest.skip("structured output is not installed: requirements-xgrammar.txt", allow_module_level=True)
pytestmark = pytest.mark.timeout(300)  # seconds on an idle machine, minutes on a crowded one

HEAD = r"(def|class) [a-z]{1,8}\(\): (pass|return)"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["read", "write"]}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "n"],
    "additionalProperties": False,
}
PROMPTS = ["import os\n", "def f(", "class A"]


def params(seed: int = 3, **settings: Any) -> list[SamplingParams]:
    common = {"temperature": 0.8, **settings}
    return [
        SamplingParams(regex=HEAD, max_tokens=40, seed=seed, **common),
        SamplingParams(json_schema=SCHEMA, max_tokens=60, seed=seed + 1, **common),
        SamplingParams(max_tokens=12, seed=seed + 2, **common),
    ]


def answers(**settings: Any) -> list[tuple[int, ...]]:
    with LLM(max_num_seqs=4, deterministic="batch", **settings) as llm:
        outputs = llm.generate(PROMPTS, params())
        assert [output.error for output in outputs] == [None] * 3
        assert re.fullmatch(HEAD, outputs[0].text)
        assert set(json.loads(outputs[1].text)) == {"name", "n"}
        assert [output.outputs[0].so_complete for output in outputs] == [True, True, None]
    return [output.token_ids for output in outputs]


def test_drafts_and_steps_in_flight_leave_answers_in_grammars_as_they_are() -> None:
    plain = answers(overlap=False)
    assert answers(draft_tokens=3, verify="coupled") == plain


@pytest.mark.slow
@pytest.mark.parametrize("draft_tokens", [0, 1, 2, 4])
@pytest.mark.parametrize("overlap", [True, False])
def test_every_draft_length_gives_the_same_answers_in_grammars(draft_tokens: int, overlap: bool) -> None:
    verify = {"verify": "coupled"} if draft_tokens else {}
    assert answers(draft_tokens=draft_tokens, overlap=overlap, **verify) == answers()


@pytest.mark.slow
def test_rejection_verification_keeps_every_answer_in_its_grammar() -> None:
    with LLM(max_num_seqs=8, draft_tokens=3, verify="rejection", seed=1) as llm:
        outputs = llm.generate(PROMPTS * 8, [item for seed in range(8) for item in params(seed=10 * seed)])
        assert sum(llm.draft_report.accepted) > 0
    assert [output.error for output in outputs] == [None] * 24
    for head, call, _ in zip(*[iter(outputs)] * 3, strict=True):
        assert re.fullmatch(HEAD, head.text)
        assert json.loads(call.text)["name"] in ("read", "write")
