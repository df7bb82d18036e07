"""The sampler ``canonical``: masks, filters and the canonical draw over the rows of one step (``spec/sampling.md`` 2).

A request's token is a function of its own logits, parameters, seed and position. Nothing here sums over rows, and sums
along a row are of integers, so neither the place in the batch nor the other requests can change a bit of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from attrs import evolve

from deepinfer_contracts import SamplerInputs, SamplerOutput
from deepinfer_core.errors import NotSupported, ShapeContractError
from deepinfer_core.requests.request_parts import NO_PARTS, RequestParts
from deepinfer_samplers import shortcuts
from deepinfer_samplers.description import joined, model_logprobs
from deepinfer_samplers.drafts import DraftPool, row_bytes
from deepinfer_samplers.filters import MAX_VOCAB
from deepinfer_samplers.outcome import fresh_output, verified_output
from deepinfer_samplers.parameters import StepParameters
from deepinfer_samplers.proposals import Proposer
from deepinfer_samplers.reading import greedy_inputs, host, misfit, read
from deepinfer_samplers.rows import Preparation, chunk_rows
from deepinfer_samplers.static_steps import StaticGreedyStep, is_static
from deepinfer_samplers.step_drafts import StepDrafts, no_drafts
from deepinfer_samplers.verification import choose, join

if TYPE_CHECKING:
    from deepinfer_core.interfaces import DraftBlock


class CanonicalSampler:
    """Implements `StaticDraftingSampler` and `StaticSampler` of `deepinfer_core.interfaces`. Keeps no state between
    steps but drafts.

    Never waits for a device: the parameters are read from host memory, and the results stay where the logits are.

    :param num_draft: Drafts of a request in each decode step; call `reserve` before the first.
    :param is_coupled: Draw with coupled noise, with and without drafts; else canonical draws and rejection.
    :param device: Where the drafts are kept.
    :param preparation: What happens to logits before anything is chosen; None: what the requests say.
    :param sum_smaller: Whether to return the audit statistic ``sum_smaller``.
    :raises NotSupported: ``vocab_size`` is above 262,144.
    """

    host_inputs = True
    """``sample`` wants ``SamplerInputs`` as packed, not on the device."""

    def __init__(
        self,
        vocab_size: int,
        *,
        num_draft: int = 0,
        is_coupled: bool = False,
        device: str | torch.device = "cpu",
        preparation: Preparation | None = None,
        sum_smaller: bool = False,
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
        self.preparation = preparation or Preparation(vocab_size)
        self.sum_smaller = sum_smaller
        self._proposer: Proposer | None = None
        self._static: dict[int, StaticGreedyStep] = {}

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
        self._check(logits)
        with torch.inference_mode():
            return self._sample(logits.detach(), inputs)

    def sample_with(
        self, logits: torch.Tensor, inputs: SamplerInputs, parts: Mapping[int, RequestParts]
    ) -> SamplerOutput:
        """As `sample`, for a step in which requests name row samplers or logits filters.

        :param parts: Request of the step -> what it names. Its rows are fetched to the host and wait for the device.
        """
        self._check(logits)
        with torch.inference_mode():
            return self._sample(logits.detach(), inputs, parts)

    def is_static(self, inputs: SamplerInputs) -> bool:
        """Whether every request takes the best token of its logits as they are, one row each
        (`deepinfer_core.interfaces.StaticSampler`).

        :raises ShapeContractError: as `sample`.
        """
        if inputs.draft_rows is not None or len(self.preparation.penalties):
            return False  # drafts are verified; a slot with counts may have to lose them
        step = read(inputs, len(inputs.temperature), self.vocab_size, self.vocab_size)
        one_each = step.source is None and len(step.rows) == len(step)
        asked = step.rows.forced is not None or step.top is not None
        return one_each and not asked and self.preparation.takes_as_given(step)

    def sample_static(self, logits: torch.Tensor) -> SamplerOutput:
        """`sample` of a step for which `is_static` holds: a greedy request for each row of ``logits`` f32 ``[R, V]``.

        :raises ShapeContractError: ``logits`` is not such a matrix.
        """
        return self.sample(logits, greedy_inputs(len(logits)))

    def prompt_logprobs(self, logits: torch.Tensor, targets: Any) -> Any:
        """Log-probability of the token that follows each row of a prompt, in the model's own distribution.

        :param logits: f32 ``[P, V]``, as for `sample`; a few thousand rows at a time bound the memory.
        :param targets: int ``[P]``, numpy or a tensor of any device: the token behind each row.
        :returns: f32 ``[P]``, where the logits are: an array on the host, else a tensor of the device. NaN where a row
            holds NaN or +inf, or no finite value; -inf for a token beyond the vocabulary.
        :raises ShapeContractError: ``logits`` and ``targets`` do not fit each other.
        """
        self._check(logits)
        tokens = targets if isinstance(targets, torch.Tensor) else shortcuts.upload(targets, logits.device)
        if tokens.shape != (len(logits),):
            raise misfit("targets", f"shape ({len(logits)},), one a row", f"shape {tuple(tokens.shape)}")
        with torch.inference_mode():
            tokens = tokens.to(logits.device).long()
            inside = (tokens >= 0) & (tokens < self.vocab_size)
            tokens, logits = tokens.clamp(0, self.vocab_size - 1), logits[:, : self.vocab_size]
            size = chunk_rows(logits.device, self.vocab_size)
            parts = [model_logprobs(logits[i : i + size], tokens[i : i + size]) for i in range(0, len(logits), size)]
            values = joined(parts, torch.zeros(0, device=logits.device))
            return shortcuts.result(values.masked_fill(~inside, float("-inf")))

    def _check(self, logits: torch.Tensor) -> None:
        if logits.ndim != 2 or logits.shape[1] < self.vocab_size or logits.dtype != torch.float32:
            raise ShapeContractError(
                f"sampler 'canonical': logits: expected float32 (R, V) with V >= {self.vocab_size},"
                f" got {str(logits.dtype).removeprefix('torch.')} {tuple(logits.shape)}"
            )

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
            fused = self.preparation.fused
            self._proposer = Proposer(pool, self.vocab_size, is_coupled=self.is_coupled, fused=fused)
            self._static.clear()

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

    def static_step(self, inputs: SamplerInputs, size: int) -> StaticGreedyStep | None:
        """Steps of greedy requests that ask for nothing else (`deepinfer_core.interfaces.StaticDraftingSampler`).

        :raises ShapeContractError: as `sample`.
        """
        if self._proposer is None or inputs.draft_rows is None:
            return None
        step = read(inputs, size * (self.num_draft + 1), self.vocab_size, self.vocab_size)
        drafts = self._drafts(inputs, step) if is_static(step, inputs, self.preparation) else None
        if drafts is None:
            return None
        found = self._static.get(size)
        if found is None:
            found = StaticGreedyStep(size, self._proposer, self.preparation, sum_smaller=self.sum_smaller)
            self._static[size] = found
        found.load(drafts, inputs)
        return found

    def _sample(
        self, logits: torch.Tensor, inputs: SamplerInputs, parts: Mapping[int, RequestParts] = NO_PARTS
    ) -> SamplerOutput:
        step = read(inputs, logits.shape[0], logits.shape[1], self.vocab_size)
        if parts:
            step = evolve(step, parts=parts)
        drafts = self._drafts(inputs, step)
        proposed = None if drafts is None else drafts.tokens
        choices = [
            choose(
                rows,
                step,
                is_coupled=self.is_coupled,
                proposed=proposed,
                drafts=drafts,
                sum_smaller=self.sum_smaller,
            )
            for rows in self.preparation.parts(logits, step, proposed)
        ]
        whole = join(choices, step, logits.device, sum_smaller=self.sum_smaller)
        if drafts is None or proposed is None:
            output, emitted = fresh_output(whole)
        else:
            output, emitted = verified_output(drafts.pool, drafts.layout, proposed, whole)
        self.preparation.emitted(step, emitted)
        return output

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
        pool, places = self._proposer.pool, places[: len(step.rows)]
        # A row of slot 0 has nothing to verify either. It draws afresh: the first token behind a fork is then the one
        # that a prefill of the same prompt gives.
        verifies = (step.rows.offset < np.diff(step.first)[step.rows.request] - 1) & (places >= pool.num_draft)
        return StepDrafts(pool, step.first, places, verifies)
