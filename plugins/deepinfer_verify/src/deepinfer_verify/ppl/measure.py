"""Tokens forced through the decode path, and what each was worth to the model.

A prompt is prefilled, then its continuation is forced: each decode step computes the row of a token, and one row for
each draft. A draft that is the forced token is accepted, and the row behind it counts too; all others are taken back.
So blocks of drafts, their rollback and the caches are in every result. The same prompts in a fresh engine give the same
bits (``deterministic run``). The first new token belongs to the prefill's last row and is not counted.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from deepinfer_core.errors import CapacityError, DeepInferError, RequestFailed
from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_verify.ppl.platforms import platform_of
from deepinfer_verify.ppl.records import Entry, SampleResult

if TYPE_CHECKING:
    from deepinfer_core.llm import LLM
    from deepinfer_core.requests.outputs import RequestOutput
    from deepinfer_verify.ppl.workloads import Sample, Workload


def measure(llm: LLM, workload: Workload, fingerprint: str) -> Entry:
    """What this machine computes for ``workload``, as an entry without a reason; ``fingerprint`` is the checkpoint's.

    Raises CapacityError where the model is too short for it, InvalidInputFile where the text is, and RequestFailed with
    the reason where a sample ended early.
    """
    if workload.length > llm.built.max_model_len:
        raise CapacityError(
            f"workload {workload.name} has sequences of {workload.length:,} tokens",
            reason=f"the model's longest sequence is {llm.built.max_model_len:,}",
            remedy="give a shorter workload with --workload",
            details={"workload": workload.name, "max_model_len": llm.built.max_model_len},
        )
    tokenizer = llm.get_tokenizer()
    start = tokenizer.encode("")  # what the model begins every text with
    samples = workload.cut(tokenizer.encode(workload.text)[len(start) :], start)
    outputs = llm.generate([list(sample.prompt) for sample in samples], [_forced(sample) for sample in samples])
    where = platform_of(llm)
    return Entry(
        key=f"{where.key}/{workload.name}",
        platform=where.record,
        workload=workload.description(samples),
        model=fingerprint,
        samples=tuple(_result(sample, output) for sample, output in zip(samples, outputs, strict=True)),
        created=datetime.now(UTC).date().isoformat(),
    )


def _forced(sample: Sample) -> SamplingParams:
    """Greedy, so that a draft is the drafter's best token; log-probabilities are those of the model itself."""
    return SamplingParams(
        temperature=0,
        max_tokens=len(sample.forced),
        ignore_eos=True,
        forced_token_ids=sample.forced,
        logprobs=True,
        logprobs_mode="raw",
        seed=0,
    )


def _result(sample: Sample, output: RequestOutput) -> SampleResult:
    completion = output.outputs[0]
    if completion.error is not None or completion.token_ids != sample.forced or completion.logprobs is None:
        failed = completion.error or DeepInferError(f"it ended with {completion.finish_reason}")
        raise RequestFailed(
            f"sample {sample.id} ended after {len(completion.token_ids)} of {len(sample.forced)} forced tokens",
            reason=failed.what + (f" ({failed.reason})" if failed.reason else ""),
            remedy=failed.remedy or "run it again with --debug",
            details={"sample": sample.id, "finish_reason": completion.finish_reason},
        )
    return SampleResult.of(
        sample.id,
        sample.sha256,
        [item.logprob for item in completion.logprobs[1:]],
        verified=completion.verified_drafts,
        accepted=completion.accepted_drafts,
    )
