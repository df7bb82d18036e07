"""Requests whose answers must not depend on what else runs, and all that can be seen of an answer, bit for bit."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from attrs import frozen

from deepinfer_core import LLM, RequestOutput, SamplingParams
from deepinfer_core.requests.outputs import Completion

Proposals = dict[tuple[int, int], tuple[bytes, bytes | None]]
"""(seed, position) -> draft ids and confidences that a step proposed there, as bytes."""


@frozen
class Case:
    """One request: what it is called in a failure, prompt and parameters."""

    name: str
    prompt: tuple[int, ...]
    params: SamplingParams


def has_grammars() -> bool:
    return importlib.util.find_spec("xgrammar") is not None


def subjects(max_tokens: int) -> list[Case]:
    """Eleven requests, each with its own seed, which differ in all that a sampler step and a scheduler step see."""
    draw = random.Random(41)
    wishes: dict[str, dict[str, Any]] = {
        "greedy": {"temperature": 0, "top_logprobs": 2},
        "sampled": {"logprobs": True},
        "raw": {"temperature": 0.8, "top_logprobs": 3, "logprobs_mode": "raw", "prompt_logprobs": True},
        "filtered": {"temperature": 1.3, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "logprobs": True},
        "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.7, "presence_penalty": -0.4, "logprobs": True},
        "greedy penalties": {"temperature": 0, "frequency_penalty": -1.5, "top_logprobs": 1},
        "bias": {"logit_bias": {17: 4.0, 201: -100.0}, "logprobs": True},
        "samples": {"n": 3, "logprobs": True},
        "forced": {"forced_token_ids": (-1, 721, -1, 890, 17), "logprobs": True},
        "stops": {"stop": (" = ", "("), "stop_token_ids": tuple(range(300, 340)), "logprobs": True},
        "grammar": {"regex": "[a-z]{2,9} = [0-9]{1,6}", "top_logprobs": 2, "ignore_eos": False}
        if has_grammars()
        else {"logprobs": True},
    }
    lengths = (1, 2, 3, 16, 17, 31, 33, 12, 40, 8, 5)
    made = []
    for (name, given), length in zip(wishes.items(), lengths, strict=True):
        params = SamplingParams(**{"max_tokens": max_tokens, "ignore_eos": True, "seed": draw.getrandbits(64), **given})
        made.append(Case(name, tuple(draw.randrange(3, 1500) for _ in range(length)), params))
    return made


def neighbours(count: int, seed: int) -> list[Case]:
    """Requests to stand around others: prompts of 1 to 64 tokens and all kinds of parameters."""
    draw = random.Random(seed)
    made = []
    for i in range(count):
        has_grammar = has_grammars() and i % 6 == 1
        params = SamplingParams(
            temperature=draw.choice((0.0, 0.6, 1.0, 1.5)),
            top_p=draw.choice((1.0, 0.8)),
            top_k=draw.choice((-1, 1, 30)),
            frequency_penalty=draw.choice((0.0, 0.0, 1.2)),
            repetition_penalty=draw.choice((1.0, 0.8)),
            logit_bias=draw.choice(({}, {5: 3.0})),
            top_logprobs=draw.choice((0, 0, 5)),
            regex="[0-9]+" if has_grammar else None,
            n=2 if i % 7 == 3 else 1,
            seed=draw.getrandbits(64),
            max_tokens=draw.randint(1, 10),
            ignore_eos=not has_grammar,
        )
        made.append(Case(f"neighbour {i}", tuple(draw.randrange(3, 1500) for _ in range(draw.randint(1, 64))), params))
    return made


def visible(output: RequestOutput, *, with_drafts: bool) -> tuple[Any, ...]:
    """All of an answer that follows from its request alone. Floats are equal only if they have the same bits."""
    answers = tuple(_answer(completion, with_drafts) for completion in output.outputs)
    return answers, None if output.prompt_logprobs is None else tuple(map(_bits, output.prompt_logprobs))


def _answer(answer: Completion, with_drafts: bool) -> tuple[Any, ...]:
    if answer.error is not None:
        raise answer.error
    items = tuple(
        (
            _bits(item.logprob),
            tuple((token, _bits(value)) for token, value in item.top),
            _bits(item.sum_smaller),
            _bits(item.draft_logprob) if with_drafts else None,
        )
        for item in answer.logprobs or ()
    )
    drafts = (answer.drafted_tokens, answer.accepted_tokens) if with_drafts else ()
    return answer.token_ids, answer.text, answer.finish_reason, answer.finish_detail, answer.so_complete, items, drafts


def _bits(value: float | None) -> str | None:
    return None if value is None else value.hex()


def outputs_of(llm: LLM, cases: Sequence[Case]) -> dict[str, RequestOutput]:
    """name -> result, of one call with all ``cases``; audits the core."""
    outputs = llm.generate([list(case.prompt) for case in cases], [case.params for case in cases])
    llm.built.engine.core.audit()
    return {case.name: output for case, output in zip(cases, outputs, strict=True)}


def require_equal(
    wanted: dict[str, RequestOutput], found: dict[str, RequestOutput], where: str, *, with_drafts: bool = True
) -> None:
    """Every request of ``wanted`` has the same in ``found``. ``with_drafts``: also what was drafted for it."""
    pairs = {name: [visible(each[name], with_drafts=with_drafts) for each in (wanted, found)] for name in wanted}
    different = [name for name, (before, after) in pairs.items() if before != after]
    if different:
        name = different[0]
        before, after = pairs[name]
        raise AssertionError(f"{where}: {different} differ; {name}:\n{before}\nbecame\n{after}")


@contextmanager
def kept_proposals(into: Proposals) -> Iterator[None]:
    """Keep what the shipped sampler drafts, confidences included, by the key of the first draft's noise."""
    from deepinfer_samplers.canonical import CanonicalSampler

    plain = CanonicalSampler.draft

    def draft(self: Any, block: Any, inputs: Any, sampled: Any, num_draft: int) -> tuple[Any, Any]:
        ids, confidence = plain(self, block, inputs, sampled, num_draft)
        accepted = np.zeros(len(ids), np.int64) if sampled.accepted is None else np.asarray(sampled.accepted)
        for i, (seed, position) in enumerate(zip(inputs.seed, inputs.sample_pos, strict=True)):
            sure = None if confidence is None else np.asarray(confidence[i]).tobytes()
            into[int(seed), int(position) + int(accepted[i])] = (np.asarray(ids[i]).tobytes(), sure)
        return ids, confidence

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CanonicalSampler, "draft", draft)
        yield
