"""A mixed workload for the shipped model, and what must be equal about its results however the engine is set.

Requests differ in everything that the scheduler sees: prompt and answer length, greedy and seeded draws, stop ids and
stop strings, penalties and forbidden tokens, several samples, prompts that are refused, and requests that are cancelled
after a fixed number of tokens.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from attrs import evolve, frozen

from deepinfer_core import LLM, SamplingParams

LENGTHS = (1, 2, 3, 7, 8, 31, 32, 33, 63, 64, 65)
"""Prompt lengths at the edges of windows, groups and blocks; the others are drawn."""
STOPS = ("(", "\n", "self", " = ", "import", ")")
CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"repetition_penalty": 1.5},
    {},
    {"frequency_penalty": -1.0, "presence_penalty": 0.5, "logit_bias": {201: -100.0, 17: 3.0}},
)
"""What depends on the true history of a request, of each fourth one: others run beside it."""


@frozen
class Job:
    """One request. ``cancel_after``: output tokens after which the caller cancels it."""

    prompt: tuple[int, ...]
    params: SamplingParams
    cancel_after: int | None = None


@frozen
class Result:
    """How a job ended, without times and whatever else may differ between two runs."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    finish_detail: str
    others: tuple[tuple[int, ...], ...] = ()
    """Tokens of the further samples."""


def workload(count: int, *, longest: int, vocab_size: int, limit: int, seed: int) -> list[Job]:
    """``count`` jobs, the same for the same arguments.

    :param longest: Tokens of the longest prompt that is to run.
    :param limit: Tokens of a prompt that the engine refuses.
    """
    draw = random.Random(seed)
    jobs = []
    for i in range(count):
        length = LENGTHS[i] if i < len(LENGTHS) else draw.randint(1, longest)
        if i % 29 == 23:
            length = limit
        temperature = draw.choice((0.0, 0.0, 0.7, 1.0))
        params = SamplingParams(
            temperature=temperature,
            top_p=draw.choice((1.0, 0.9)),
            top_k=draw.choice((-1, 20)),
            max_tokens=draw.randint(1, 40),
            min_tokens=0,
            **CHANGES[i % len(CHANGES)],
            ignore_eos=draw.random() < 0.5,
            stop=draw.sample(STOPS, 2) if i % 5 == 1 else (),
            stop_token_ids=draw.sample(range(3, vocab_size), 60) if i % 5 == 2 else (),
            seed=draw.getrandbits(64),
            n=3 if i % 8 == 4 else 1,
        )
        if i % 10 == 7:
            params = params.updated({"min_tokens": min(3, params.max_tokens)})
        prompt = tuple(draw.randrange(3, 1500) for _ in range(min(length, limit)))
        jobs.append(Job(prompt, params, draw.randint(0, 12) if i % 7 == 6 and params.n == 1 else None))
    return jobs


def run_jobs(llm: LLM, jobs: Sequence[Job]) -> list[Result]:
    """Run all jobs in one call; audits the core at the end."""
    results: dict[int, Result] = {}
    counts = [0] * len(jobs)
    with llm.stream([list(job.prompt) for job in jobs], [job.params for job in jobs]) as stream:
        for index, job in enumerate(jobs):
            if job.cancel_after == 0:
                stream.cancel(index)
        for chunk in stream:
            counts[chunk.index] += len(chunk.token_ids)
            if chunk.output is not None:
                out = chunk.output
                others = tuple(completion.token_ids for completion in out.outputs[1:])
                results[out.index] = Result(out.token_ids, out.text, out.finish_reason, out.finish_detail, others)
            elif (after := jobs[chunk.index].cancel_after) is not None and counts[chunk.index] >= after:
                stream.cancel(chunk.index)
    core = llm.built.engine.core
    core.check()
    core.audit()
    return [results[index] for index in range(len(jobs))]


def comparable(jobs: Sequence[Job], results: Sequence[Result]) -> list[Result]:
    """What two runs must agree on: of a cancelled request the tokens that the caller had waited for.

    More may have come before the cancellation was carried out, and how many depends on the steps in flight.
    """
    out = []
    for job, result in zip(jobs, results, strict=True):
        if result.finish_reason == "abort" and job.cancel_after is not None:
            if len(result.token_ids) < job.cancel_after:
                raise AssertionError(f"{len(result.token_ids)} tokens, cancelled after {job.cancel_after}")
            result = evolve(result, token_ids=result.token_ids[: job.cancel_after], text="")
        out.append(result)
    return out


def pool_of(llm: LLM, *, blocks: int, slots: int) -> int:
    """The ``kv_memory`` that holds so many blocks and slots beside the null units, for the sizes of ``llm``."""
    specs, backend = llm.assembly.cache_specs, llm.assembly.backend
    slot = backend.unit_bytes(specs, "swa") + backend.unit_bytes(specs, "state")
    return (blocks + 1) * backend.unit_bytes(specs, "main") + (slots + 1) * slot
