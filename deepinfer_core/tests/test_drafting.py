"""A model that proposes drafts: the engine calls it behind sampling, and its drafts reach the next step."""

from __future__ import annotations

from typing import Any

import pytest
from drafted_toys import DraftedModel, DrawingSampler, Spoil
from drafting_toys import DRAFT_RING, DraftingBackend, draft_hints, whole_text
from engine_toys import BLOCK, check_idle, ids, prompts_of, toy_llm

from deepinfer_core.assembly import build
from deepinfer_core.assembly.native_core import make_core
from deepinfer_core.llm import LLM
from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_core.types import CacheLayer, CacheSpec

pytest.importorskip("torch", reason="the ops of two steps in flight are plain torch")
pytestmark = pytest.mark.usefixtures("overlap")

K = 3


def drafted_llm(model: DraftedModel | None = None, *, device: bool = False, **settings: Any) -> LLM:
    parts: dict[str, Any] = {
        "backend": DraftingBackend(),
        "model": model or DraftedModel(5),
        "hints": draft_hints(K),
        "sampler": settings.pop("sampler", None) or DrawingSampler(K, device=device),
        "cache_specs": (
            CacheSpec("main", "main", [CacheLayer(0, BLOCK, "i64", 1)]),
            CacheSpec("swa", "swa", [CacheLayer(0, DRAFT_RING, "i64", 1)]),
        ),
    }
    return toy_llm(parts=parts, **settings)


def params_of(*counts: int) -> list[SamplingParams]:
    return [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, seed=i + 1) for i, n in enumerate(counts)]


def texts(prompts: list[list[int]], counts: tuple[int, ...]) -> list[list[int]]:
    return [whole_text(p, n)[len(p) :] for p, n in zip(prompts, counts, strict=True)]


@pytest.mark.parametrize("device", [False, True])
def test_draft_that_equals_the_model_is_accepted_whole(device: bool) -> None:
    counts = (1 + 4 * (K + 1),) * 5
    prompts = prompts_of(5, 9, seed=31)
    model = DraftedModel(5)
    with drafted_llm(model, device=device) as llm:
        sampler = llm.assembly.sampler  # type: ignore[attr-defined]
        outputs = llm.generate(prompts, params_of(*counts))
        check_idle(llm)
        stats = llm.built.engine.core.stats()
        assert llm.times.draft > 0
    assert ids(outputs) == texts(prompts, counts)
    assert model.calls[0] is True
    assert sampler.accepted[:20] == [K] * 20
    assert stats.tokens_accepted >= 5 * 4 * K


def test_first_decode_step_verifies_what_came_with_the_prefill_step() -> None:
    prompts = prompts_of(4, 7, seed=32)
    with drafted_llm(max_num_seqs=4) as llm:
        sampler = llm.assembly.sampler  # type: ignore[attr-defined]
        outputs = llm.generate(prompts, params_of(9, 9, 9, 9))
        check_idle(llm)
    assert ids(outputs) == texts(prompts, (9,) * 4)
    assert sampler.accepted[:4] == [K] * 4


SPOILT: dict[str, Spoil] = {
    "all": lambda position, k: True,
    "last": lambda position, k: k == K - 1,
    "in rotation": lambda position, k: k >= (position * 7 + 3) % (K + 1),
}


@pytest.mark.parametrize("with_confidence", [True, False])
@pytest.mark.parametrize("spoilt", list(SPOILT))
def test_spoilt_drafts_do_not_change_the_tokens(spoilt: str, with_confidence: bool) -> None:
    counts = (9, 1, 30, 17, 23, 2)
    prompts = prompts_of(6, 7, seed=33)
    model = DraftedModel(5, SPOILT[spoilt], with_confidence=with_confidence)
    with drafted_llm(model, max_num_seqs=4, max_chunk=4) as llm:
        outputs = llm.generate(prompts, params_of(*counts))
        check_idle(llm)
    assert [output.error for output in outputs] == [None] * 6
    assert ids(outputs) == texts(prompts, counts)


def test_confidences_of_the_model_share_the_rows_out(overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "make_core", lambda **s: make_core(**s, verify_lengths="confidence"))
    counts = (30, 30, 30, 30)
    prompts = prompts_of(4, 7, seed=34)
    with drafted_llm(DraftedModel(5, SPOILT["in rotation"]), max_num_seqs=4) as llm:
        core = llm.built.engine.core
        core.set_verify_curve([1, 2, 4, 8, 12, 16], [1.0, 1.1, 1.3, 1.7, 2.2, 3.0])
        outputs = llm.generate(prompts, params_of(*counts))
        check_idle(llm)
        stats = core.stats()
    assert ids(outputs) == texts(prompts, counts)
    rows = stats.tokens_decode - stats.tokens_drafted
    assert stats.tokens_drafted < K * rows


def test_chunk_that_ends_no_prompt_is_not_drafted() -> None:
    model = DraftedModel(5)
    prompts = prompts_of(1, 12, seed=35)
    with drafted_llm(model, max_chunk=4) as llm:
        outputs = llm.generate(prompts, params_of(2))
    assert ids(outputs) == texts(prompts, (2,))
    assert model.calls.count(True) == 1


def test_preempted_request_is_drafted_again() -> None:
    prompts = prompts_of(4, 10, seed=36)
    slots = int(1.2 * 4) + 1
    settings = {"kv_memory": 17 * BLOCK * 8 + slots * DRAFT_RING * 8, "max_num_seqs": 4}
    with drafted_llm(DraftedModel(5, SPOILT["in rotation"]), **settings) as llm:
        outputs = llm.generate(prompts, params_of(30, 30, 30, 30))
        check_idle(llm)
        stats = llm.built.engine.core.stats()
    assert stats.preemptions >= 3
    assert ids(outputs) == texts(prompts, (30,) * 4)


def test_failure_of_the_drafter_is_the_models_and_ends_its_step_only() -> None:
    model = DraftedModel(5)
    whole, calls = model.spoil, []

    def fail(position: int, k: int) -> bool:
        calls.append(k)
        if len(calls) == 2 * K:  # one request: the second step's last draft
            raise RuntimeError("boom")
        return whole(position, k)

    model.spoil = fail
    prompts = prompts_of(2, 5, seed=37)
    with drafted_llm(model, max_num_seqs=1) as llm:
        outputs = llm.generate(prompts, params_of(9, 9))
        check_idle(llm)
    assert [output.finish_reason for output in outputs] == ["engine", "length"]
    error = outputs[0].error
    assert error is not None
    assert error.what.startswith("model.draft of toy (acme-model 0.1) failed")
    assert "boom" in error.reason
    assert list(outputs[1].token_ids) == texts(prompts, (9, 9))[1]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda drawn: drawn[0], "returned ndarray, expected a pair"),
        (
            lambda drawn: (drawn[0][:, :1], drawn[1]),
            "returned draft ids of shape (1, 1), expected draft ids of shape [1, 3]",
        ),
        (lambda drawn: (drawn[0], drawn[1][0]), "returned confidences of shape (3,)"),
        (lambda drawn: (None, drawn[1]), "returned draft ids of shape None"),
    ],
)
def test_wrong_return_of_the_samplers_draft_is_named(answer: Any, text: str) -> None:
    sampler = DrawingSampler(K)
    whole = sampler.draft
    sampler.draft = lambda *given: answer(whole(*given))  # type: ignore[method-assign]
    with drafted_llm(sampler=sampler) as llm:
        (output,) = llm.generate(prompts_of(1, 5, seed=38), params_of(4))
        check_idle(llm)
    assert output.error is not None
    assert text in output.error.reason


def test_model_that_returns_no_block_is_named() -> None:
    model = DraftedModel(5)
    model.draft = lambda *given: None  # type: ignore[method-assign]
    with drafted_llm(model) as llm:
        (output,) = llm.generate(prompts_of(1, 5, seed=39), params_of(4))
    assert output.error is not None
    assert "model.draft of toy (acme-model 0.1) returned None, expected a DraftBlock" in output.error.reason


def test_drafter_is_not_called_when_the_engine_verifies_no_drafts() -> None:
    model = DraftedModel(5)
    prompts = prompts_of(2, 5, seed=40)
    parts: dict[str, Any] = {"backend": DraftingBackend(), "model": model, "hints": draft_hints(0)}
    specs = (
        CacheSpec("main", "main", [CacheLayer(0, BLOCK, "i64", 1)]),
        CacheSpec("swa", "swa", [CacheLayer(0, DRAFT_RING, "i64", 1)]),
    )
    with toy_llm(parts={**parts, "cache_specs": specs}) as llm:
        outputs = llm.generate(prompts, params_of(5, 5))
    assert ids(outputs) == texts(prompts, (5, 5))
    assert model.calls == []
