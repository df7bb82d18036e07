"""The end of phase C: the model proposes what the next step verifies, and the sampler draws it. All on the device."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

from deepinfer_core.graphs.verifying import VerifyGraphs
from deepinfer_core.pipeline.faults import StepFault
from deepinfer_core.pipeline.machinery import Machinery
from deepinfer_core.pipeline.record import StepRecord
from deepinfer_core.pipeline.sampled import SAMPLE, device_ready, wrong_step_return
from deepinfer_core.records import SamplerOutput

PROPOSE = "model.draft"
DRAW = "sampler.draft"


def draft(parts: Machinery, record: StepRecord, hidden: Any, inputs: Any, results: SamplerOutput) -> None:
    """Put drafts and confidences into what ``record`` sampled, and into ``results``, which the next step reads.

    ``inputs``: what the sampler got. Raises StepFault.
    """
    start = perf_counter_ns()
    at, sampled, n = parts.at, record.sampled, record.num_reqs
    _check_sampled(parts, record, results)
    accepted = None if record.is_prefill else results.accepted
    with at.call(PROPOSE):
        propose = parts.propose or parts.model.draft  # type: ignore[attr-defined]
        block = _checked_block(parts, propose(hidden, record.inputs, results.sampled_ids, accepted, parts.caches))
    proposals = _Proposals(parts, block)
    try:
        with at.call(DRAW):
            num_draft = parts.core_config.num_draft
            drawn = parts.sampler.draft(proposals, inputs, sampled, num_draft)  # type: ignore[attr-defined]
            ids, confidence = _checked(drawn, (n, num_draft), at.owners.sampler)
    except StepFault as fault:
        raise proposals.fault or fault from fault.cause
    sampled.draft_ids, sampled.confidence = ids, confidence
    sampled.draft_ids_device = sampled.confidence_device = None
    _pass_on(parts, results, ids, confidence)
    parts.times.draft += perf_counter_ns() - start


def draft_in_graph(parts: Machinery, record: StepRecord, graphs: VerifyGraphs, results: SamplerOutput) -> None:
    """As :func:`draft`, for a step that ``graphs`` sampled."""
    start = perf_counter_ns()
    at, sampled, n = parts.at, record.sampled, record.num_reqs
    _check_sampled(parts, record, results)
    with at.call(PROPOSE):
        graphs.start(record.inputs, results)
    made: list[_Proposals] = []

    def propose(rows: Any) -> Any:
        with at.call(PROPOSE):
            block = _checked_block(parts, parts.model.propose(rows, parts.caches))  # type: ignore[attr-defined]
        made.append(_Proposals(parts, block))
        return made[-1]

    try:
        with at.call(DRAW):
            drawn, onward = graphs.draw(n, propose)
            _checked((drawn.draft_ids, drawn.confidence), (n, parts.core_config.num_draft), at.owners.sampler)
    except StepFault as fault:
        raise next((one.fault for one in made if one.fault is not None), fault) from fault.cause
    sampled.draft_ids, sampled.confidence = drawn.draft_ids, drawn.confidence
    _pass_on(parts, results, onward.draft_ids, onward.confidence)
    parts.times.draft += perf_counter_ns() - start


def _pass_on(parts: Machinery, results: SamplerOutput, ids: Any, confidence: Any) -> None:
    """Drafts and confidences to what the next step reads, on the device."""
    with parts.at.call("backend.bind_inputs"):
        bound = parts.bound(SamplerOutput(draft_ids=device_ready(ids), confidence=device_ready(confidence)))
    results.draft_ids, results.confidence = bound.draft_ids, bound.confidence


class _Proposals:
    """The model's block as the sampler gets it; remembers that it was the model which failed."""

    def __init__(self, parts: Machinery, block: Any) -> None:
        self._at = parts.at
        self._block = block
        self.fault: StepFault | None = None

    def step(self, k: int, previous: Any) -> tuple[Any, Any]:
        try:
            logits, confidence = self._block.step(k, previous)
        except Exception as err:
            self.fault = self._at.fault(PROPOSE, err)
            raise
        return logits, confidence


def _checked_block(parts: Machinery, block: Any) -> Any:
    if not hasattr(block, "step"):
        got = "None" if block is None else type(block).__name__
        raise wrong_step_return(PROPOSE, parts.at.owners.model, got, "a DraftBlock")
    return block


def _check_sampled(parts: Machinery, record: StepRecord, results: SamplerOutput) -> None:
    """A drafter goes on from the token of every request, and from what was accepted."""
    owner, n = parts.at.owners.sampler, record.num_reqs
    with parts.at.call(SAMPLE):
        if not isinstance(record.sampled, SamplerOutput):
            raise wrong_step_return(SAMPLE, owner, type(record.sampled).__name__, "a SamplerOutput, which takes drafts")
        wanted = [("sampled_ids", results.sampled_ids)]
        if not record.is_prefill:
            wanted.append(("accepted", results.accepted))
        for name, values in wanted:
            if values is None or len(values) != n:
                got = f"{name} of {'nothing' if values is None else len(values)}"
                raise wrong_step_return(SAMPLE, owner, got, f"{name} for each of {n} requests, for the drafter")


def _checked(drawn: Any, shape: tuple[int, int], owner: str) -> tuple[Any, Any]:
    if not isinstance(drawn, tuple) or len(drawn) != 2:
        raise wrong_step_return(DRAW, owner, type(drawn).__name__, "a pair (draft ids, confidences or None)")
    for name, values in zip(("draft ids", "confidences"), drawn, strict=True):
        if values is None and name != "draft ids":
            continue
        got = getattr(values, "shape", None)
        if got is None or tuple(got) != shape:
            raise wrong_step_return(DRAW, owner, f"{name} of shape {got}", f"{name} of shape {list(shape)}")
    return drawn
