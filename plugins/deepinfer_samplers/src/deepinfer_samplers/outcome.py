"""What a step gives: the prefix rule of its drafts, and the record for the engine (``spec/sampling.md`` 2.7)."""

from __future__ import annotations

from typing import Any

import torch
from attrs import frozen

from deepinfer_contracts import SamplerOutput
from deepinfer_samplers import shortcuts
from deepinfer_samplers.description import NO_ALTERNATIVE
from deepinfer_samplers.drafts import NO_DRAFT, DraftPool
from deepinfer_samplers.step_drafts import StepLayout
from deepinfer_samplers.verification import Choice


@frozen
class Outcome:
    """How far the drafts of each request hold. Tensors lie where the logits do."""

    accepted: torch.Tensor
    """int64 ``[N]``: drafts that were accepted one after the other."""
    final: torch.Tensor
    """int64 ``[N]``: the row whose token ends the step of the request."""
    counted: torch.Tensor
    """bool ``[R]``: rows whose draft is part of the output."""
    verified_per_step: torch.Tensor
    """int32 ``[K]``: drafts verified at each place of a block."""
    accepted_per_step: torch.Tensor
    """int32 ``[K]``: of these, how many became part of the output."""


def settle(layout: StepLayout, accepted: torch.Tensor, is_draft: torch.Tensor) -> Outcome:
    """The prefix rule: a row counts only if every earlier row of its request was accepted.

    :param accepted: bool ``[R]``, each row's own verdict.
    :param is_draft: bool ``[R]``, whether the row verifies a token.
    """
    holds = (accepted[layout.at] & layout.inside).to(torch.int32).cumprod(1)
    length = holds.sum(1)
    return Outcome(
        length,
        layout.first + length,
        layout.offset < length[layout.request],
        (is_draft[layout.at] & layout.inside).sum(0).to(torch.int32),
        holds.sum(0).to(torch.int32),
    )


def fresh_output(rows: Choice) -> tuple[SamplerOutput, torch.Tensor]:
    """The output of a step with a row for each request, and the token that each row emits, int32 ``[R]``."""
    result, reported = shortcuts.result, rows.description
    output = SamplerOutput(
        sampled_ids=result(rows.tokens),
        sampled_logprob=result(reported.logprobs),
        row_status=result(rows.status),
        top_ids=_optional(reported.top_ids),
        top_logprobs=_optional(reported.top_logprobs),
        sum_smaller=_optional(reported.sum_smaller),
    )
    return output, rows.tokens


def verified_output(
    pool: DraftPool, layout: StepLayout, tokens: torch.Tensor, rows: Choice
) -> tuple[SamplerOutput, torch.Tensor]:
    """The output of a step that verifies: tokens, what was accepted, the statistics of it. And what each row emits,
    int32 ``[R]``, -1 for nothing.

    :param tokens: int64 ``[R]``, the draft of each row, -1 for none.
    """
    ids, places, reported = rows.tokens, layout.places, rows.description
    is_draft = tokens != NO_DRAFT
    accepted = torch.zeros_like(is_draft) if rows.accepted is None else rows.accepted & is_draft
    outcome = settle(layout, accepted, is_draft)
    final, counted = outcome.final, outcome.counted
    verified_ids = ids.masked_fill(~counted, NO_DRAFT)
    result = shortcuts.result
    output = SamplerOutput(
        sampled_ids=result(ids[final]),
        sampled_logprob=result(reported.logprobs[final]),
        row_status=result(rows.status[final]),
        verified_ids=result(verified_ids),
        verified_logprob=result(reported.logprobs.masked_fill(~counted, 0.0)),
        draft_logprob=result(pool.logprobs[places].clamp(max=0.0).masked_fill(~is_draft, 0.0)),
        accepted=result(outcome.accepted.to(torch.int32)),
        verified_per_step=result(outcome.verified_per_step),
        accepted_per_step=result(outcome.accepted_per_step),
    )
    if reported.top_ids is not None and reported.top_logprobs is not None:
        output.top_ids, output.top_logprobs = result(reported.top_ids[final]), result(reported.top_logprobs[final])
        left_out = ~counted.unsqueeze(1)
        output.verified_top_ids = result(reported.top_ids.masked_fill(left_out, NO_ALTERNATIVE))
        output.verified_top_logprobs = result(reported.top_logprobs.masked_fill(left_out, 0.0))
    if reported.sum_smaller is not None:
        output.sum_smaller = result(reported.sum_smaller[final])
        output.verified_sum_smaller = result(reported.sum_smaller.masked_fill(~counted, 0.0))
    if rows.chance is not None:
        error: Any = (rows.chance - pool.confidence[places]).abs().masked_fill(~is_draft, 0.0).sum()
        output.confidence_error = float(result(error)) if shortcuts.on_host(error) else error
    return output, verified_ids.index_copy(0, final, ids[final])


def _optional(tensor: torch.Tensor | None) -> Any:
    return None if tensor is None else shortcuts.result(tensor)
