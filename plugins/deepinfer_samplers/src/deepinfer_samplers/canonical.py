"""The sampler ``canonical``: masks, filters and the canonical draw over the rows of one step (``spec/sampling.md`` 2).

A request's token is a function of its own logits, parameters, seed and position. Nothing here sums over rows, and sums
along a row are of integers, so neither the place in the batch nor the other requests can change a bit of it.
"""

from __future__ import annotations

import numpy as np
import torch

from deepinfer_contracts import SamplerInputs, SamplerOutput
from deepinfer_core.errors import NotSupported, ShapeContractError
from deepinfer_samplers import shortcuts
from deepinfer_samplers.draw import draw
from deepinfer_samplers.filters import MAX_VOCAB
from deepinfer_samplers.hashing import FRESH, draw_keys
from deepinfer_samplers.parameters import StepParameters, read
from deepinfer_samplers.rows import Rows, parts


class CanonicalSampler:
    """Implements `deepinfer_core.interfaces.Sampler`. Keeps no state between steps.

    Never waits for a device: the parameters are read from host memory, and the results stay where the logits are.

    :raises NotSupported: ``vocab_size`` is above 262,144.
    """

    host_inputs = True
    """``sample`` wants ``SamplerInputs`` as packed, not on the device."""

    def __init__(self, vocab_size: int) -> None:
        if vocab_size > MAX_VOCAB:
            raise NotSupported(
                f"sampler 'canonical' handles vocabularies of up to {MAX_VOCAB} ids, got {vocab_size}",
                reason="the exact mass of a wider row does not fit into 64 bits",
                remedy="use another sampler",
            )
        self.vocab_size = vocab_size

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
            return self._sample(logits.detach(), read(inputs, logits.shape[0], logits.shape[1], self.vocab_size))

    def _sample(self, logits: torch.Tensor, step: StepParameters) -> SamplerOutput:
        if len(step.rows) != len(step):
            raise NotSupported(
                "sampler 'canonical' does not support verification of drafts: SamplerInputs.draft_rows is set",
                reason="this release draws one token a request",
                remedy="run with draft length 0",
                details={"field": "draft_rows"},
            )
        device = logits.device
        choices = [_choose(rows) for rows in parts(logits, step, self.vocab_size)]
        if not choices:
            empty = torch.zeros(0, device=device)
            choices = [(empty.to(torch.int32), empty, empty.to(torch.int8))]
        ids, logprobs, status = choices[0] if len(choices) == 1 else map(torch.cat, zip(*choices, strict=True))
        result = shortcuts.result
        return SamplerOutput(sampled_ids=result(ids), sampled_logprob=result(logprobs), row_status=result(status))


def _choose(rows: Rows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The token of each row, i32, its log-probability, f32, and the row's status, i8: all ``[r]``."""
    device = rows.logits.device
    ids, logprobs = rows.best.to(torch.int32), torch.zeros(len(rows), device=device)
    forced = None if rows.parameters.forced is None else shortcuts.upload(rows.parameters.forced, device)
    if forced is not None:  # all the mass of a greedy row is on its best token
        logprobs.masked_fill_((forced >= 0) & (forced != ids), float("-inf"))
        ids = torch.where(forced >= 0, forced, ids)
    drawn = rows.drawn()
    if len(drawn):
        index = shortcuts.upload(drawn, device)
        distribution = rows.distribution(drawn)
        keys = draw_keys(rows.parameters.seed[drawn], rows.parameters.position[drawn], FRESH).view(np.int64)
        tokens = draw(distribution.probabilities, shortcuts.upload(keys, device))
        if forced is not None:
            wanted = forced[index]
            tokens = torch.where(wanted >= 0, wanted.long(), tokens)
        ids[index] = tokens.to(torch.int32)
        logprobs[index] = distribution.logprobs(tokens)
    if rows.failed is not None:
        ids.masked_fill_(rows.failed, 0)
        logprobs.masked_fill_(rows.failed, float("-inf"))
    return ids, logprobs, rows.status
