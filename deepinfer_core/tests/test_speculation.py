"""Any draft length, one step or two in flight, any number accepted: the tokens of the run without drafts."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from drafting_toys import DRAFT_RING, DraftingBackend, DraftingSampler, Pattern, draft_hints, whole_text
from engine_toys import BLOCK, Faulty, ToyModel, check_idle, ids, prompts_of, toy_llm

from deepinfer_core.assembly import build
from deepinfer_core.assembly.native_core import make_core
from deepinfer_core.llm import LLM
from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_core.types import CacheLayer, CacheSpec

pytest.importorskip("torch", reason="the ops of two steps in flight are plain torch")
pytestmark = pytest.mark.usefixtures("overlap")

PATTERNS: dict[str, Pattern] = {
    "all right": lambda seed, position, j: True,
    "all wrong": lambda seed, position, j: False,
    "in rotation": lambda seed, position, j: j < (seed + position) % 6,
    "right after wrong": lambda seed, position, j: (seed * 7 + position * 5 + j) % 3 != 0,
}
COUNTS = (9, 1, 30, 17, 23, 2)


def drafting_llm(num_draft: int, pattern: Pattern, prompts: list[list[int]], **settings: Any) -> LLM:
    """Request ``i`` has the seed ``i + 1``, by which the sampler knows it."""
    device, fault = settings.pop("device_results", False), settings.pop("fault", None)
    truth = {i + 1: whole_text(p, 60) for i, p in enumerate(prompts)}
    parts: dict[str, Any] = {
        "backend": DraftingBackend(),
        "model": ToyModel(DRAFT_RING),
        "hints": draft_hints(num_draft),
        "sampler": DraftingSampler(num_draft, truth, pattern, device=device),
        "cache_specs": (
            CacheSpec("main", "main", [CacheLayer(0, BLOCK, "i64", 1)]),
            CacheSpec("swa", "swa", [CacheLayer(0, DRAFT_RING, "i64", 1)]),
        ),
    }
    if fault is not None:
        parts["model"] = Faulty(parts["model"], fault, "forward", "logits")
        parts["sampler"] = Faulty(parts["sampler"], fault, "sample")
    return toy_llm(parts=parts, **settings)


def params_of(counts: tuple[int, ...], **more: Any) -> list[SamplingParams]:
    return [
        SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, seed=i + 1, **more) for i, n in enumerate(counts)
    ]


@pytest.mark.parametrize("pattern", list(PATTERNS))
@pytest.mark.parametrize("num_draft", [1, 3, 5])
def test_drafts_do_not_change_the_tokens(num_draft: int, pattern: str) -> None:
    prompts = prompts_of(6, 7, seed=11)
    with drafting_llm(num_draft, PATTERNS[pattern], prompts, max_num_seqs=4) as llm:
        outputs = llm.generate(prompts, params_of(COUNTS))
        check_idle(llm)
        stats = llm.built.engine.core.stats()
        steps = llm.times.steps
    want = [whole_text(p, n)[len(p) :] for p, n in zip(prompts, COUNTS, strict=True)]
    assert [output.error for output in outputs] == [None] * 6
    assert ids(outputs) == want
    if pattern == "all right":
        assert stats.tokens_accepted > 0
        assert steps < sum(COUNTS)
    if pattern == "all wrong":
        assert stats.tokens_accepted == 0


CURVE = ([1, 2, 4, 8, 12, 16, 24], [1.0, 1.1, 1.3, 1.7, 2.2, 3.0, 5.0])


@pytest.mark.parametrize("device_results", [False, True])
@pytest.mark.parametrize("pattern", list(PATTERNS))
def test_lengths_by_confidence_do_not_change_the_tokens(
    pattern: str, device_results: bool, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "make_core", lambda **s: make_core(**s, verify_lengths="confidence"))
    prompts = prompts_of(6, 7, seed=16)
    settings = {"max_num_seqs": 4, "device_results": device_results}
    with drafting_llm(5, PATTERNS[pattern], prompts, **settings) as llm:
        core = llm.built.engine.core
        core.set_verify_curve(*CURVE)
        corrected: list[list[int]] = []
        correct = core.correct

        def note(step_id: int, lengths: Any) -> None:
            corrected.append(lengths.tolist())
            correct(step_id, lengths)

        monkeypatch.setattr(core, "correct", note)
        outputs = llm.generate(prompts, params_of(COUNTS))
        check_idle(llm)
        stats = core.stats()
    want = [whole_text(p, n)[len(p) :] for p, n in zip(prompts, COUNTS, strict=True)]
    assert [output.error for output in outputs] == [None] * 6
    assert ids(outputs) == want
    rows = stats.tokens_decode - stats.tokens_drafted  # one of each request in each step
    assert stats.tokens_drafted < 5 * rows
    assert bool(corrected) == overlap
    if pattern == "all right":
        assert stats.tokens_accepted > 0


@pytest.mark.parametrize("num_draft", [0, 2])
def test_results_may_stay_on_the_device_until_the_commit(num_draft: int) -> None:
    prompts = prompts_of(5, 9, seed=12)
    with drafting_llm(num_draft, PATTERNS["in rotation"], prompts, max_num_seqs=3, device_results=True) as llm:
        outputs = llm.generate(prompts, params_of(COUNTS[:5]))
        check_idle(llm)
    assert ids(outputs) == [whole_text(p, n)[9:] for p, n in zip(prompts, COUNTS, strict=False)]


def test_stop_inside_an_accepted_block_wins_and_nothing_follows_it() -> None:
    prompts = prompts_of(3, 6, seed=13)
    answers = [whole_text(p, 20)[6:] for p in prompts]
    stops = [answer[4] for answer in answers]
    params = [
        SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, seed=i + 1, stop_token_ids=[stop])
        for i, stop in enumerate(stops)
    ]
    with drafting_llm(5, PATTERNS["all right"], prompts) as llm:
        outputs = llm.generate(prompts, params)
        check_idle(llm)
    for output, answer, stop in zip(outputs, answers, stops, strict=True):
        assert list(output.token_ids) == answer[: answer.index(stop) + 1]
        assert output.finish_reason == "stop"


@pytest.mark.parametrize("num_draft", [0, 1, 3, 5])
def test_preemption_every_few_steps_does_not_change_the_tokens(num_draft: int) -> None:
    prompts = prompts_of(4, 10, seed=14)
    slots = int(1.2 * 4) + 1
    settings = {"kv_memory": 17 * BLOCK * 8 + slots * DRAFT_RING * 8, "max_num_seqs": 4}
    with drafting_llm(num_draft, PATTERNS["right after wrong"], prompts, **settings) as llm:
        outputs = llm.generate(prompts, params_of((30, 30, 30, 30)))
        check_idle(llm)
        stats = llm.built.engine.core.stats()
    assert stats.preemptions >= 3
    assert stats.tokens_output == 120
    assert ids(outputs) == [whole_text(p, 30)[10:] for p in prompts]


@pytest.mark.parametrize("num_draft", [1, 4])
@pytest.mark.parametrize("seed", range(4))
def test_random_faults_and_cancels_between_draft_steps_leave_nothing_behind(num_draft: int, seed: int) -> None:
    draw = random.Random(seed)
    prompts = [prompts_of(1, draw.randrange(1, 20), seed=100 * seed + i)[0] for i in range(16)]
    counts = tuple(draw.randrange(1, 25) for _ in prompts)
    done: dict[int, Any] = {}

    def fault(name: str, call: int, go: Callable[[], Any]) -> Any:
        if draw.random() < 0.02:
            raise RuntimeError("boom")
        return go()

    slots = int(1.2 * 4) + 1
    settings = {"kv_memory": 24 * BLOCK * 8 + slots * DRAFT_RING * 8, "max_num_seqs": 4}
    with drafting_llm(num_draft, PATTERNS["in rotation"], prompts, fault=fault, **settings) as llm:
        with llm.stream(prompts, params_of(counts)) as stream:
            for chunk in stream:
                if draw.random() < 0.05:
                    stream.cancel(draw.randrange(16))
                if chunk.output is not None:
                    done[chunk.index] = chunk.output
        check_idle(llm)
    assert sorted(done) == list(range(16))
    for index, output in done.items():
        want = whole_text(prompts[index], counts[index])[len(prompts[index]) :]
        assert list(output.token_ids) == want[: len(output.token_ids)]
        assert output.finish_reason in ("length", "abort", "engine")
        assert output.finish_reason != "length" or list(output.token_ids) == want


def test_sampler_without_accepted_counts_is_named(overlap: bool) -> None:
    prompts = prompts_of(2, 4, seed=15)
    with drafting_llm(2, PATTERNS["all right"], prompts) as llm:
        sampler = llm.assembly.sampler  # type: ignore[attr-defined]
        whole = sampler.sample

        def without(logits: Any, inputs: Any) -> Any:
            out = whole(logits, inputs)
            out.accepted = None
            return out

        sampler.sample = without
        outputs = llm.generate(prompts, params_of((6, 6)))
        check_idle(llm)
    if not overlap:  # the verified ids say the same on the host
        assert [output.error for output in outputs] == [None, None]
        return
    for output in outputs:
        assert output.error is not None
        assert "without accepted, expected accepted for each request" in output.error.reason
