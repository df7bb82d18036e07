"""Phase C: from hidden rows to sampled tokens. The results stay on the device; nothing here may wait for it."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from deepinfer_core.graphs.sampling import SampleGraphs
from deepinfer_core.graphs.verifying import VerifyGraphs
from deepinfer_core.pipeline.draft import draft, draft_in_graph
from deepinfer_core.pipeline.machinery import Machinery
from deepinfer_core.pipeline.prompt_scores import score_prompts
from deepinfer_core.pipeline.record import StepRecord
from deepinfer_core.pipeline.sampled import SAMPLE, check_result, device_arrays, device_ready, wrong_step_return
from deepinfer_core.records import SamplerOutput

NEEDS_ACCEPTED = "accepted for each request: the next step starts behind what was accepted"


Mask = Callable[[StepRecord, Any], Any]
"""Gives the SamplerInputs of a step with the masks of grammars, and leaves the given ones as they are."""


def sample(parts: Machinery, core: Any, record: StepRecord, mask: Mask) -> None:
    """Launch logits and sampling of ``record``; fills ``sampled``, ``results`` and ``event``. Raises StepFault.

    A step in which no row ends its prompt has nothing to sample; log-probabilities of prompts are computed in it too.
    """
    times, at = parts.times, parts.at
    hidden, record.hidden = record.hidden, None
    if not record.samples and not record.scores_prompts:
        _mark(parts, record)
        return
    t0 = perf_counter_ns()
    if record.seqlens_q is not None:
        with at.call("backend.to_host"):  # of a small result of this step's own prologue
            lengths = parts.backend.to_host(record.seqlens_q)
        with at.call("core.correct"):
            core.correct(record.step_id, lengths)
    with at.call("core.pack_sampler"):
        rows = core.pack_sampler(record.step_id)
    before = perf_counter_ns()
    with at.call("grammar.mask"):
        rows = mask(record, rows)
    in_grammar = perf_counter_ns() - before
    with parts.guard():
        if rows.prompt_tokens is not None:
            score_prompts(parts, record, hidden, rows)
        if not record.samples:
            _mark(parts, record)
            return
        is_host = getattr(parts.sampler, "host_inputs", False)
        wanted = rows
        if record.is_prefill or not is_host:
            with at.call("backend.bind_inputs"):
                wanted = parts.bound(rows)
        expected, ends = record.num_tokens, hidden
        if record.is_prefill:  # in decode every row gets logits
            expected = record.num_reqs
            with at.call("model.forward"):  # whose result cannot be indexed otherwise
                ends = hidden[wanted.selected_rows]
        t1 = perf_counter_ns()
        graphs = _graphs_of(parts, record, rows)
        logits: Any = None
        if graphs is None:
            with at.call("model.logits"):
                logits = parts.model.logits(ends)
                at.expect_rows("model.logits", logits, expected)
        t2 = perf_counter_ns()
        with at.call(SAMPLE):
            given = rows if is_host else wanted
            onward = None
            if graphs is not None:
                sampled, onward = graphs.sample(record.num_reqs, record.num_tokens)
            elif record.named:
                sampled = parts.sampler.sample_with(logits, given, record.named)  # type: ignore[attr-defined]  # checked
            else:
                sampled = parts.sampler.sample(logits, given)
            record.sampled = sampled
            check_result(sampled, record.num_reqs, owner=at.owners.sampler)
            if parts.drafts or (core.config.depth > 1 and not record.is_prefill):
                # A prefill step is committed before the next one, which then takes nothing from the device.
                onward = _for_next_step(onward or sampled)
                if core.config.num_draft and onward.accepted is None and not record.is_prefill:
                    got = f"{type(sampled).__name__} without accepted"
                    raise wrong_step_return(SAMPLE, at.owners.sampler, got, NEEDS_ACCEPTED)
        if onward is not None:
            with at.call("backend.bind_inputs"):
                record.results = parts.bound(onward)
        t3 = perf_counter_ns()
        if isinstance(graphs, VerifyGraphs):
            draft_in_graph(parts, record, graphs, record.results)
        elif parts.drafts:
            draft(parts, record, hidden, rows if is_host else wanted, record.results)
        t4 = perf_counter_ns()
        _mark(parts, record)
    times.grammar += in_grammar
    times.pack += t1 - t0 - in_grammar
    times.logits += t2 - t1
    times.sample += t3 - t2
    record.forward_ns += t2 - t1
    record.sample_ns = t4 - t2


def _graphs_of(parts: Machinery, record: StepRecord, rows: Any) -> SampleGraphs | VerifyGraphs | None:
    """What runs logits and sampling of this step from a graph; None: they are launched op by op."""
    graphs = None if record.is_prefill or record.named or parts.decode is None else parts.decode.sampling
    if graphs is None:
        return None
    with parts.at.call(SAMPLE):
        return graphs if graphs.takes(record.num_reqs, rows) else None


def _mark(parts: Machinery, record: StepRecord) -> None:
    """The end of a step on the device; what the host wants of it sets out now, not when the host asks."""
    if parts.prefetch is not None and record.sampled is not None:
        with parts.at.call("backend.prefetch"):
            parts.prefetch([*device_arrays(record.sampled), *record.prompt_scores])
    if parts.record_event is not None:
        with parts.at.call("backend.record_event"):
            record.event = parts.record_event()


def _for_next_step(sampled: Any) -> SamplerOutput:
    """What the next step reads: tokens, drafts, accepted counts, confidences; where there are two copies, the
    device's."""

    def best(name: str) -> Any:
        on_device = getattr(sampled, f"{name}_device", None)
        return device_ready(getattr(sampled, name, None) if on_device is None else on_device)

    return SamplerOutput(
        sampled_ids=best("sampled_ids"),
        draft_ids=best("draft_ids"),
        confidence=best("confidence"),
        accepted=device_ready(getattr(sampled, "accepted", None)),
    )
