"""Lengths of a decode step with drafts, of which the host knows a bound only (``spec/engine.md`` 5.4).

How many drafts the step in flight accepted is on the device. So the device moves each request back by what was
rejected, and expands the fields of the rows anew.
"""

from __future__ import annotations

from typing import Any

from deepinfer_core.pipeline.machinery import Machinery
from deepinfer_core.pipeline.record import StepRecord

CORRECT_LENGTHS = "meta.correct_lengths"
VERIFY_LENGTHS = "meta.verify_lengths"
DECODE_METADATA = "meta.decode_metadata"


def share_rows(parts: Machinery, record: StepRecord, remap: Any, confidence: Any) -> Any:
    """Rows of each request of ``record``, on the device: the host fixed how many there are (7.4). Raises StepFault.

    They are kept in the record for phase C, which tells the core. None where the host's lengths hold: they are fixed,
    or the sampler has no confidences.
    """
    if parts.core_config.verify_lengths != "confidence" or confidence is None or not parts.core_config.num_draft:
        return None
    with parts.at.call(VERIFY_LENGTHS):
        known = confidence[: record.num_reqs] if remap is None else confidence
        record.seqlens_q = parts.backend.ops[VERIFY_LENGTHS](known, remap, record.num_tokens)
    if parts.prefetch is not None:  # the host wants them before the model's rows are done
        with parts.at.call("backend.prefetch"):
            parts.prefetch([record.seqlens_q])
    return record.seqlens_q


def correct_lengths(parts: Machinery, inputs: Any, remap: Any, accepted: Any, seqlens_q: Any) -> None:
    """Change ``inputs`` to the true positions. Raises StepFault.

    ``remap``: on the device; None: the identity. ``seqlens_q``: rows of each request; None: those of ``inputs``.
    """
    core, ops = parts.core_config, parts.backend.ops
    packed = inputs.seqlens_q
    q = packed if seqlens_q is None else seqlens_q
    with parts.at.call(CORRECT_LENGTHS):
        start = inputs.seqlens_k - packed
        inputs.seqlens_k = ops[CORRECT_LENGTHS](start, q, remap, accepted, num_draft=core.num_draft)
    with parts.at.call(DECODE_METADATA):
        has_rows = getattr(inputs, "block_tables", None) is not None
        first = inputs.cu_seqlens_q_incl - packed  # one row of each request: its slots and its table are those of all
        none = inputs.seqlens_k  # the common record has positions only: nothing reads slots or tables
        expanded = ops[DECODE_METADATA](
            q,
            inputs.seqlens_k,
            inputs.block_tables[first] if has_rows else none.reshape(-1, 1),
            inputs.state_slot_idx[first] if has_rows else none,
            inputs.swa_slot_idx[first] if has_rows else none,
            block_size=core.block_size,
            window=core.window if has_rows else 0,
            ring=core.ring,
            ratios_sparse=core.ratios_sparse if has_rows else (),
            ratios_dense=core.ratios_dense if has_rows else (),
            valid=inputs.valid_token_mask,
        )
        for name, values in expanded.items():
            if getattr(inputs, name, None) is not None:
                setattr(inputs, name, values)
        inputs.seqlens_q = q
