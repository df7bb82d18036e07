"""Drawing drafts: the drafter's logits, through each request's own parameters, into the draft pool.

Draft j of a request is for the position j + 1 behind the token that the step sampled. Its draws are keyed by that
absolute position and by j: a position that is drafted again, from a later step, gets fresh noise, so that confidences
never depend on noise that a later draft uses (``spec/sampling.md`` 2.6). Coupled drafts use the noise of the position,
which is that of the token they are compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import torch
from attrs import frozen

from deepinfer_contracts import SamplerInputs, SamplerOutput
from deepinfer_samplers import shortcuts
from deepinfer_samplers.description import joined
from deepinfer_samplers.drafts import NO_DRAFT, DraftPool
from deepinfer_samplers.draw import draw
from deepinfer_samplers.fused import FusedOps
from deepinfer_samplers.gumbel import coupled, noise_keys
from deepinfer_samplers.hashing import draw_keys
from deepinfer_samplers.parameters import StepParameters
from deepinfer_samplers.reading import host, of_drafts
from deepinfer_samplers.rows import GREEDY_BELOW, Preparation, Rows

if TYPE_CHECKING:
    from deepinfer_core.interfaces import DraftBlock

FIRST_DRAFT_CASE: Final = 4
"""Case of `hashing.draw_keys` of the first draft behind a step; each draft after it has the next one."""


@frozen
class Proposed:
    """Drafts of ``N`` requests. Tensors lie where the pool does."""

    ids: torch.Tensor
    """int32 ``[N, K]``, -1 for none."""
    logprobs: torch.Tensor
    """f32 ``[N, K]``, 0 where there is none."""
    confidence: torch.Tensor | None
    """f32 ``[N, K]``, 0 where there is none; None without a confidence for every draft."""


class Proposer:
    """Draws the drafts of steps into a pool.

    :param is_coupled: Whether the noise is that of the positions' own tokens.
    :param fused: What a backend does in one launch; None: nothing.
    """

    def __init__(self, pool: DraftPool, vocab_size: int, *, is_coupled: bool, fused: FusedOps | None = None) -> None:
        self.pool = pool
        self.vocab_size = vocab_size
        self.is_coupled = is_coupled
        self._preparation = Preparation(vocab_size, fused=fused)

    def draft(
        self, block: DraftBlock, inputs: SamplerInputs, sampled: SamplerOutput, num_draft: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """``num_draft`` drafts of each request: ids int32 ``[N, K]``, -1 for none, and confidences f32 ``[N, K]``.

        A request whose tokens hold one of its stop tokens gets confidences of 0: what it would verify is thrown away.
        """
        device = self.pool.tokens.device
        step, slots = of_drafts(inputs), host(inputs.draft_write_slot)
        previous, accepted = as_tensor(sampled.sampled_ids, device), as_tensor(sampled.accepted, device)
        keys = None
        if (step.rows.temperature >= GREEDY_BELOW).any():
            keys = [self._keys(step, k, num_draft, accepted, device) for k in range(num_draft)]
        made = self.propose(block, step, previous, num_draft, keys, slots)
        kept, rows = slots > 0, self.pool.rows(slots)
        if kept.all():
            self.pool.write(shortcuts.upload(rows, device), made.ids, made.logprobs, made.confidence)
        elif kept.any():
            at, places = shortcuts.upload_all([np.flatnonzero(kept), rows[kept]], device)
            confidence = None if made.confidence is None else made.confidence[at]
            self.pool.write(places, made.ids[at], made.logprobs[at], confidence)
        if made.confidence is None:
            return made.ids, None
        return made.ids, made.confidence.masked_fill(_stopped(inputs, sampled, device).unsqueeze(1), 0.0)

    def propose(
        self,
        block: DraftBlock,
        step: StepParameters,
        previous: torch.Tensor,
        num_draft: int,
        keys: Sequence[torch.Tensor] | None,
        slots: npt.NDArray[np.integer[Any]],
    ) -> Proposed:
        """Draw ``num_draft`` drafts of each request, and put the distributions of those that are drawn into the pool.

        :param previous: int ``[N]``, what the step sampled.
        :param keys: Of each draft, int64 ``[N]``; None where every request is greedy, and ``slots`` are not read then.
        """
        device, ids, logprobs, confidences = self.pool.tokens.device, [], [], []
        for k in range(num_draft):
            logits, confidence = (as_tensor(values, device) for values in block.step(k, previous))
            made = [
                self._draw(rows, None if keys is None else keys[k][rows.at], slots[rows.at], k)
                for rows in self._preparation.parts(logits, step)
            ]
            tokens, of_tokens = (joined(list(part), logits.new_zeros(0)) for part in zip(*made, strict=True))
            ids.append(tokens.to(torch.int32))
            logprobs.append(of_tokens)
            if confidence is not None:
                confidences.append(confidence.masked_fill(tokens == NO_DRAFT, 0.0))
            previous = ids[-1].clamp(min=0)  # what follows "no draft" is never verified
        confidence = torch.stack(confidences, 1) if len(confidences) == num_draft else None
        return Proposed(torch.stack(ids, 1), torch.stack(logprobs, 1), confidence)

    def _keys(
        self, step: StepParameters, k: int, num_draft: int, accepted: torch.Tensor | None, device: torch.device
    ) -> torch.Tensor:
        """Key of draft ``k`` of each request, int64 ``[N]``. How many drafts were accepted is known on the device
        only, so the keys of every possible number go there."""
        seeds, first = step.rows.seed, step.rows.position.astype(np.int64) + 1 + k
        choices = [self._keys_at(seeds, first + a, k) for a in range(1 if accepted is None else num_draft + 1)]
        table = shortcuts.upload(np.stack(choices, 1), device)
        return table[:, 0] if accepted is None else table.gather(1, accepted.long().unsqueeze(1)).squeeze(1)

    def _keys_at(
        self, seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64], k: int
    ) -> npt.NDArray[np.int64]:
        if self.is_coupled:
            return noise_keys(seeds, positions)
        return draw_keys(seeds, positions, FIRST_DRAFT_CASE + k).view(np.int64)

    def _draw(
        self, rows: Rows, keys: torch.Tensor | None, slots: npt.NDArray[np.integer[Any]], k: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draft ``k`` of some requests, int64 ``[r]``, and its log-probability, f32 ``[r]``."""
        drawn = rows.drawn()
        tokens, logprobs = rows.best, torch.zeros(len(rows), device=rows.logits.device)
        if len(drawn) and keys is not None:
            tokens = tokens.clone()
            index = shortcuts.upload(drawn, tokens.device)
            distribution = rows.distribution(drawn)
            probabilities = distribution.probabilities
            tokens[index] = coupled(distribution, keys[index]) if self.is_coupled else draw(probabilities, keys[index])
            logprobs[index] = distribution.logprobs(tokens[index])
            kept = np.flatnonzero(slots[drawn] > 0)
            if len(kept) and not self.is_coupled:
                mine = probabilities[shortcuts.upload(kept, tokens.device)]
                if rows.failed is not None:  # no draft has no distribution either: what is left of the target is all
                    nothing = rows.failed[shortcuts.upload(drawn[kept], tokens.device)]
                    mine = mine.masked_fill(nothing.unsqueeze(1), 0.0)
                self.pool.write_distributions(self.pool.rows(slots[drawn][kept], k), mine)
        if rows.failed is None:
            return tokens, logprobs
        return tokens.masked_fill(rows.failed, NO_DRAFT), logprobs.masked_fill(rows.failed, 0.0)


def as_tensor(values: Any, device: torch.device) -> Any:
    """Arrays of the host as tensors; a tensor as it is, None as None."""
    return shortcuts.upload(np.ascontiguousarray(values), device) if isinstance(values, np.ndarray) else values


def _stopped(inputs: SamplerInputs, sampled: SamplerOutput, device: torch.device) -> torch.Tensor:
    """Whether a request's tokens of this step hold one of its stop tokens, bool ``[N]``."""
    stop_ids = host(inputs.stop_ids)
    last = as_tensor(sampled.sampled_ids, device)
    stopped = torch.zeros(len(last), dtype=torch.bool, device=device)
    if not stop_ids.shape[1]:
        return stopped
    stops = shortcuts.upload(stop_ids, device)
    stopped |= (stops == last.unsqueeze(1)).any(1)
    verified = as_tensor(sampled.verified_ids, device)
    if verified is not None and inputs.row_count is not None:
        request = np.repeat(np.arange(len(stop_ids)), host(inputs.row_count))
        owner = shortcuts.upload(request, device)
        mine = verified[: len(request)]
        found = (stops[owner] == mine.unsqueeze(1)).any(1) & (mine >= 0)
        stopped |= torch.zeros(len(last), dtype=torch.int32, device=device).index_add_(0, owner, found.int()) > 0
    return stopped
