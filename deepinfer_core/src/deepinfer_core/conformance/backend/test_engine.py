"""The backend under the whole engine, on the small checkpoint that a model plugin ships."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core.assembly.fingerprint import model_fingerprint
from deepinfer_core.conformance.failures import fail, require, require_equal
from deepinfer_core.conformance.kinds import KIT
from deepinfer_core.conformance.subject import Subject

PROMPTS = ((5, 17, 400), tuple(range(3, 40)), (900, 31, 31, 8, 64, 71, 12, 12, 12), (1000,))
NEW_TOKENS = 8


@pytest.fixture(scope="module")
def checkpoint(subject: Subject) -> Path:
    """The small checkpoint of an installed model plugin."""
    for record in subject.manager.registry.of_kind("model"):
        if record.table.checkpoint and record.manifest is not None:
            return record.manifest.path.parent / record.table.checkpoint
    pytest.skip("no installed model plugin ships a checkpoint (deepinfer-v41 does)")


@pytest.fixture(scope="module")
def engine(subject: Subject, checkpoint: Path) -> Iterator[Any]:
    """An ``LLM`` on the backend under test, in the numbers of the released model."""
    from deepinfer_core import LLM

    with LLM(str(checkpoint), **subject.engine, kv_memory="64MiB") as llm:
        yield llm


@pytest.mark.level("smoke")
def test_engine_generates_the_tokens_of_an_independent_implementation(subject: Subject, checkpoint: Path) -> None:
    """In fp32, where the two best tokens are never close: whatever rounds in another order gives the same ones."""
    from deepinfer_core import LLM, SamplingParams

    stored = json.loads((KIT / "reference" / "tokens.json").read_text(encoding="utf-8"))
    fingerprint = model_fingerprint(checkpoint)
    texts = next((c["texts"] for c in stored["checkpoints"] if c["fingerprint"] == fingerprint), None)
    if texts is None:
        pytest.skip(f"no tokens are stored for the checkpoint {checkpoint.name}")
    wanted = [SamplingParams(temperature=0, max_tokens=len(t["tokens"]), ignore_eos=True) for t in texts]
    with LLM(str(checkpoint), **subject.engine, numeric_mode="exact", kv_memory="64MiB") as llm:
        outputs = llm.generate([text["prompt"] for text in texts], wanted)
    for text, output in zip(texts, outputs, strict=True):
        got = list(output.token_ids)
        if got != text["tokens"]:
            place = next((i for i, (a, b) in enumerate(zip(got, text["tokens"], strict=False)) if a != b), len(got))
            fail(
                "the engine generates other tokens",
                case=text["id"],
                worst=place,
                got=got[place : place + 4],
                expected=text["tokens"][place : place + 4],
            )


@pytest.mark.level("core")
def test_engine_repeats_itself(engine: Any) -> None:
    """Two runs of one engine on the same requests, seeds included, are equal bit for bit."""
    first, second = (_answers(engine, PROMPTS) for _ in range(2))
    require_equal(second, first, "a second run of the same requests gives other answers")


@pytest.mark.level("core")
@pytest.mark.needs("feature:batch_invariant")
def test_answers_alone_equal_those_in_a_batch(engine: Any) -> None:
    """Tokens and log-probabilities, bit for bit: neither the batch, nor its order, nor how prompts are cut counts."""
    together = _answers(engine, PROMPTS)
    reordered = _answers(engine, PROMPTS[::-1])[::-1]
    for place, prompt in enumerate(PROMPTS):
        case = f"prompt {place} of {len(prompt)} tokens"
        [alone] = _answers(engine, [prompt])
        require_equal(alone, together[place], "an answer depends on the batch", case=case)
        require_equal(reordered[place], together[place], "an answer depends on the order of the batch", case=case)


@pytest.mark.level("full")
@pytest.mark.needs("feature:batch_invariant")
def test_answers_do_not_depend_on_how_prompts_are_cut(subject: Subject, checkpoint: Path, engine: Any) -> None:
    from deepinfer_core import LLM

    whole = _answers(engine, PROMPTS)
    with LLM(str(checkpoint), **subject.engine, kv_memory="64MiB", max_chunk=5) as llm:
        cut = _answers(llm, PROMPTS)
    require_equal(cut, whole, "an answer depends on where the prompt is cut")


@pytest.mark.level("core")
def test_engine_closes_its_backend_and_another_opens(subject: Subject, checkpoint: Path) -> None:
    from deepinfer_core import LLM

    answers = []
    for _ in range(2):
        with LLM(str(checkpoint), **subject.engine, kv_memory="64MiB") as llm:
            answers.append(_answers(llm, PROMPTS[:1]))
    require_equal(answers[1], answers[0], "a second engine in the process gives other answers")
    require(answers[0][0][0], "the engine generates nothing")


def _answers(llm: Any, prompts: Any) -> list[tuple[tuple[int, ...], tuple[str, ...]]]:
    """Tokens of each answer, greedy and sampled in turn, and their raw log-probabilities as hexadecimal texts."""
    from deepinfer_core import SamplingParams

    order = {prompt: place for place, prompt in enumerate(PROMPTS)}
    params = [
        SamplingParams(
            temperature=0.0 if order[prompt] % 2 else 0.9,
            seed=1000 + order[prompt],
            max_tokens=NEW_TOKENS,
            ignore_eos=True,
            logprobs=True,
            logprobs_mode="raw",
        )
        for prompt in prompts
    ]
    outputs = llm.generate([list(prompt) for prompt in prompts], params)
    return [(tuple(o.token_ids), tuple(item.logprob.hex() for item in o.logprobs)) for o in outputs]
