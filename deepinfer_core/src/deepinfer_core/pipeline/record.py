"""One step from its schedule to its commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from attrs import define, field

from deepinfer_core.errors import DeepInferError, NanFound
from deepinfer_core.pipeline.faults import StepFault
from deepinfer_core.records import SchedulerOutputs, StepKind
from deepinfer_core.requests.request_parts import NO_PARTS, RequestParts


@define(eq=False)
class StepRecord:
    """What the phases of a step hand to each other, and what the next step reads of it on the device.

    Records stay alive until the step after them is committed, because that step's launched work reads their results.
    """

    step_id: int
    kind: int
    num_reqs: int
    num_tokens: int
    uids: list[int]
    """The requests, in row order."""
    outputs: SchedulerOutputs
    """As scheduled; views of the core's memory, valid until the step is committed."""
    started_ns: int
    inputs: Any = None
    """``InputMetadata`` on the device (B)."""
    seqlens_q: Any = None
    """Rows of each request on the device (B), where it shared them out itself; the core learns them in C."""
    named: Mapping[int, RequestParts] = NO_PARTS
    """Place of a request in the step -> the row sampler and logits filters that it names."""
    hidden: Any = None
    """Rows of the model (B), until C has used them."""
    sampled: Any = None
    """The sampler's result as it came (C), maybe on the device; None where no row of the step is sampled."""
    results: Any = None
    """The same where the next step reads it: a SamplerOutput with arrays of the device."""
    forward_ns: int = 0
    """Host time of the model's part (B and C), and of sampling and drafting behind it."""
    sample_ns: int = 0
    scores_prompts: bool = False
    """Whether a request of this prefill step asks for the log-probabilities of its prompt."""
    prompt_scores: list[Any] = field(factory=list)
    """Those of the step (C), in slices, maybe on the device."""
    event: Any = None
    """Of the backend: when everything of this step is done on the device."""
    fault: StepFault | None = None
    """Why the step has no result. Its requests end when it is its turn to be committed."""

    @classmethod
    def of(cls, outputs: SchedulerOutputs, started_ns: int) -> StepRecord:
        return cls(
            int(outputs.step_id),
            int(outputs.kind),
            int(outputs.num_reqs),
            int(outputs.num_batched_tokens),
            outputs.seq_uid.tolist(),
            outputs,
            started_ns,
        )

    @property
    def is_prefill(self) -> bool:
        return self.kind == StepKind.PREFILL

    @property
    def samples(self) -> bool:
        """Whether a row of this step ends its prompt or decodes."""
        return not self.is_prefill or bool(self.outputs.is_last_chunk.any())

    def uids_of(self, rows: Sequence[int]) -> list[int]:
        """The requests that rows of the step belong to, in row order; rows beyond its own belong to none."""
        ends = accumulate(self.outputs.seqlens_q.tolist())
        wanted = iter(sorted({row for row in rows if 0 <= row < self.num_tokens}))
        row, found = next(wanted, None), []
        for uid, end in zip(self.uids, ends, strict=True):
            if row is not None and row < end:
                found.append(uid)
            while row is not None and row < end:
                row = next(wanted, None)
        return found

    @property
    def ended_prompts(self) -> list[int]:
        """The requests whose prompt ends in this step."""
        if not self.is_prefill:
            return []
        return [uid for uid, is_last in zip(self.uids, self.outputs.is_last_chunk.tolist(), strict=True) if is_last]


def launch(phase: Callable[..., None], parts: Any, core: Any, record: StepRecord, *more: Any) -> None:
    """Run phase B or C; a fault waits in the record until it is the step's turn to be committed."""
    try:
        phase(parts, core, record, *more)
    except StepFault as fault:
        record.fault = fault


def name_requests(record: StepRecord, fault: StepFault, error: DeepInferError, live: Mapping[int, Any]) -> None:
    """Add whose rows hold a NaN that an op gave; one over other rows than those of the step names none."""
    cause = fault.cause
    rows = cause.details.get("rows") if isinstance(cause, NanFound) else None
    if isinstance(cause, NanFound) and isinstance(rows, list) and cause.details.get("of") == record.num_tokens:
        named = [live[uid].request_id for uid in record.uids_of(rows) if uid in live]
        error.details["requests"] = named
        error.reason += f"; the rows are of request{'' if len(named) == 1 else 's'} {', '.join(map(str, named))}"
