"""Phase D, its first half: wait for the results of a step and bring them to the host."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter_ns

import numpy as np
from attrs import evolve

from deepinfer_core.pipeline.faults import StepFault
from deepinfer_core.pipeline.machinery import Machinery
from deepinfer_core.pipeline.prompt_scores import collected_scores
from deepinfer_core.pipeline.record import StepRecord
from deepinfer_core.pipeline.sampled import NO_ROWS, SAMPLE, BadRow, checked_output
from deepinfer_core.records import SamplerOutput


def collect(parts: Machinery, record: StepRecord) -> tuple[SamplerOutput, Mapping[int, BadRow]]:
    """``(tokens of the step, status of the rows without one)``. Raises StepFault."""
    if record.fault is not None:
        raise record.fault
    start = perf_counter_ns()
    if record.event is not None and parts.wait_event is not None:
        with parts.at.call("backend.wait"):
            parts.wait_event(record.event)
    if record.sampled is None:
        result: tuple[SamplerOutput, Mapping[int, BadRow]] = nothing(record, parts.core_config.num_draft), NO_ROWS
    else:
        with parts.at.call(SAMPLE):
            result = checked_output(
                record.sampled,
                record.num_reqs,
                vocab_size=parts.vocab_size,
                owner=parts.at.owners.sampler,
                to_host=parts.backend.to_host,
            )
    scores = collected_scores(parts, record)
    if scores is not None:
        result = evolve(result[0], prompt_logprobs=scores), result[1]
    parts.times.wait += perf_counter_ns() - start
    return result


def refused(parts: Machinery, err: ValueError) -> StepFault:
    """The fault of a result that the core's commit refused: the sampler's, where its record is what is wrong."""
    return parts.at.fault(SAMPLE if getattr(err, "contract", None) == "SamplerOutput" else "core.commit", err)


def nothing(record: StepRecord, num_draft: int) -> SamplerOutput:
    """A result for the rows of ``record`` whose tokens nobody reads."""
    n, rows = record.num_reqs, record.num_tokens
    return SamplerOutput(
        sampled_ids=np.zeros(n, dtype=np.int32),
        sampled_logprob=np.zeros(n, dtype=np.float32),
        row_status=np.zeros(n, dtype=np.int8),
        verified_ids=None if record.is_prefill or not num_draft else np.full(rows, -1, dtype=np.int32),
        draft_ids=np.full((n, num_draft), -1, dtype=np.int32) if num_draft else None,
        prompt_logprobs=None,
    )


def settle(parts: Machinery) -> None:
    """Wait until the device has left a step that failed, so that its memory can have new owners."""
    if parts.record_event is None or parts.wait_event is None:
        return
    try:
        parts.wait_event(parts.record_event())
    except Exception:  # the device that has just failed cannot even wait; the fault of the step is what gets reported
        return
