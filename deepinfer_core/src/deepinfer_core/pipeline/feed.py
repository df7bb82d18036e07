"""What a step takes from the step in flight: its tokens and lengths are on the device (``spec/engine.md`` 5.4)."""

from __future__ import annotations

from deepinfer_core.pipeline.lengths import correct_lengths, share_rows
from deepinfer_core.pipeline.machinery import FEED_TOKENS, Machinery
from deepinfer_core.pipeline.record import StepRecord
from deepinfer_core.records import SchedulerOutputs, StepFlags

IDENTITY = int(StepFlags.REMAP_IDENTITY)


def feed(parts: Machinery, record: StepRecord, previous: StepRecord) -> None:
    """Complete ``record.inputs`` with the results of ``previous``, in the order of the device's queue.

    Raises StepFault.
    """
    outputs = record.outputs
    if outputs.remap is None or int(outputs.remap.max()) < 0:
        return  # no row continues the step in flight
    with parts.at.call("backend.bind_inputs"):
        # The identity needs no gather, and so no upload.
        is_identity = int(outputs.flags) & IDENTITY
        remap = None if is_identity else parts.bound(SchedulerOutputs(remap=outputs.remap)).remap
    results = previous.results
    inputs = record.inputs
    lengths = share_rows(parts, record, remap, results.confidence)
    with parts.at.call(FEED_TOKENS):
        fresh = getattr(inputs, "fresh_ids", None)
        fed = parts.backend.ops[FEED_TOKENS](
            inputs.input_ids.reshape(record.num_reqs, -1) if fresh is None else fresh,
            inputs.seqlens_q if lengths is None else lengths,
            remap,
            results.sampled_ids,
            record.num_tokens,
            vocab_size=parts.core_config.vocab_size,
            drafts=results.draft_ids,
            accepted=results.accepted,
            ngram_win=getattr(inputs, "ngram_win", None),
            ngram_table=parts.ngram_table,
            ngram_pad=parts.core_config.ngram_pad,
        )
        for name, values in fed.items():
            setattr(inputs, name, values)
    if parts.core_config.num_draft:
        correct_lengths(parts, inputs, remap, results.accepted, lengths)
