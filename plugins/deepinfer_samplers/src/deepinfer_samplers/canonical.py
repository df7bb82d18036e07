"""The sampler ``canonical``: masks, filters and the canonical draw over the rows of one step (``spec/sampling.md`` 2).

A request's token is a function of its own logits, parameters, seed and position. Nothing here sums over rows, and sums
along a row are of integers, so neither the place in the batch nor the other requests can change a bit of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deepinfer_contracts import SamplerInputs, SamplerOutput
from deepinfer_core.errors import NotSupported, ShapeContractError
from deepinfer_samplers import shortcuts
from deepinfer_samplers.drafts import DraftPool, row_bytes
from deepinfer_samplers.filters import MAX_VOCAB
from deepinfer_samplers.parameters import StepParameters, host, read
from deepinfer_samplers.proposals import Proposer
from deepinfer_samplers.rows import parts
from deepinfer_samplers.verification import StepDrafts, choose, joined, verified_output

if TYPE_CHECKING:
    from deepinfer_core.interfaces import DraftBlock


class CanonicalSampler:
    """Implements `deepinfer_core.interfaces.DraftingSampler`. Keeps no state between steps but drafts.

    Never waits for a device: the parameters are read from host memory, and the results stay where the logits are.

    :param num_draft: Drafts of a request in each decode step; call `reserve` before the first.
    :param is_coupled: Draw with coupled noise, with and without drafts; else canonical draws and rejection.
    :param device: Where the drafts are kept.
    :raises NotSupported: ``vocab_size`` is above 262,144.
    """

    host_inputs = True
    """``sample`` wants ``SamplerInputs`` as packed, not on the device."""

    def __init__(
        self, vocab_size: int, *, num_draft: int = 0, is_coupled: bool = False, device: str | torch.device = "cpu"
    ) -> None:
        if vocab_size > MAX_VOCAB:
            raise NotSupported(
                f"sampler 'canonical' handles vocabularies of up to {MAX_VOCAB} ids, got {vocab_size}",
                reason="the exact mass of a wider row does not fit into 64 bits",
                remedy="use another sampler",
            )
        self.vocab_size = vocab_size
        self.num_draft = num_draft
        self.is_coupled = is_coupled
        self.device = torch.device(device)
        self._proposer: Proposer | None = None

    def sample(self, logits: torch.Tensor, inputs: SamplerInputs) -> SamplerOutput:
        """One token for each request.

        :param logits: f32 ``[R, V]``, ``V`` at least the vocabulary size; columns and rows beyond are padding. Not
            changed.
        :returns: ``sampled_ids`` i32, ``sampled_logprob`` f32 (of the processed distribution: 0 for a greedy choice)
            and ``row_status`` i8, all ``[N]``: arrays where the logits are on the host, else tensors of their device,
            which nothing here waits for. A row with a fault has token 0 and logprob -inf.
        :raises NotSupported: ``inputs`` asks for something that this sampler does not do; names the field.
        :raises ShapeContractError: ``logits`` and ``inputs`` do not fit each other.
        """
        if logits.ndim != 2 or logits.shape[1] < self.vocab_size or logits.dtype != torch.float32:
            raise ShapeContractError(
                f"sampler 'canonical': logits: expected float32 (R, V) with V >= {self.vocab_size},"
                f" got {str(logits.dtype).removeprefix('torch.')} {tuple(logits.shape)}"
            )
        with torch.inference_mode():
            return self._sample(logits.detach(), inputs)

    @property
    def sequence_bytes(self) -> int:
        """What the sampler keeps for each sequence of a step, and for one more: its drafts."""
        return self.num_draft * row_bytes(self.vocab_size, distributions=not self.is_coupled)

    def reserve(self, max_num_seqs: int) -> None:
        """Allocate what is kept for ``max_num_seqs`` sequences.

        :raises CapacityError: the device has too little memory.
        """
        if self.num_draft:
            pool = DraftPool(
                max_num_seqs, self.num_draft, self.vocab_size, distributions=not self.is_coupled, device=self.device
            )
            self._proposer = Proposer(pool, self.vocab_size, is_coupled=self.is_coupled)

    def draft(
        self, block: DraftBlock, inputs: SamplerInputs, sampled: SamplerOutput, num_draft: int
    ) -> tuple[Any, Any]:
        """Draw the drafts that the next step verifies (`deepinfer_core.interfaces.DraftingSampler`).

        :returns: ids int32 ``[N, K]``, -1 for none, and confidences f32 ``[N, K]``, or None without a confidence head.
        :raises NotSupported: the sampler was made for another number of drafts.
        """
        if self._proposer is None or num_draft != self.num_draft:
            raise NotSupported(
                f"sampler 'canonical' was made for {self.num_draft} drafts, and is to draw {num_draft}",
                reason="its draft pool is allocated when the engine starts",
                remedy="set --draft-tokens",
                details={"field": "draft_tokens"},
            )
        with torch.inference_mode():
            ids, confidence = self._proposer.draft(block, inputs, sampled, num_draft)
            return shortcuts.result(ids), None if confidence is None else shortcuts.result(confidence)

    def _sample(self, logits: torch.Tensor, inputs: SamplerInputs) -> SamplerOutput:
        step = read(inputs, logits.shape[0], logits.shape[1], self.vocab_size)
        drafts = self._drafts(inputs, step)
        device = logits.device
        choices = []
        status = []
        for rows in parts(logits, step, self.vocab_size):
            choice = choose(rows, is_coupled=self.is_coupled, drafts=drafts)
            choices.append(choice)
            status.append(rows.status)
            if rows.failed is not None:
                choice.tokens.masked_fill_(rows.failed, 0)
                choice.logprobs.masked_fill_(rows.failed, float("-inf"))
        whole = joined(choices, device)
        states = torch.cat(status) if status else torch.zeros(0, dtype=torch.int8, device=device)
        ids = whole.tokens.to(torch.int32)
        result = shortcuts.result
        if drafts is None:
            return SamplerOutput(
                sampled_ids=result(ids), sampled_logprob=result(whole.logprobs), row_status=result(states)
            )
        return verified_output(drafts, step.first, whole, ids, states)

    def _drafts(self, inputs: SamplerInputs, step: StepParameters) -> StepDrafts | None:
        """The drafts that this step verifies; None in a step without draft rows."""
        if inputs.draft_rows is None or inputs.row_count is None:
            if len(step.rows) != len(step):
                raise no_drafts("row_count", "without draft_rows")
            return None
        if self._proposer is None:
            raise no_drafts("draft_rows", "and it has no drafts")
        places = host(inputs.draft_rows).astype(np.int64)
        if step.source is not None:
            places = places[step.source]
        verifies = step.rows.offset < np.diff(step.first)[step.rows.request] - 1
        return StepDrafts(self._proposer.pool, places[: len(step.rows)], verifies)


def no_drafts(field: str, what: str) -> NotSupported:
    return NotSupported(
        f"sampler 'canonical' cannot verify drafts: SamplerInputs.{field} is set {what}",
        reason="it was made for an engine with draft_tokens 0",
        remedy="run with draft length 0",
        details={"field": field},
    )
