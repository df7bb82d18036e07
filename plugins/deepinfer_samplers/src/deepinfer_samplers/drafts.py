"""The draft pool: what was drafted for each sequence, and from which distribution (``spec/sampling.md`` 2.8).

A sequence has a slot of ``K`` rows, which the drafter writes behind one step and the next step verifies. Slot 0 stands
for "no drafts": its rows hold the token -1, which is never accepted, and no mass, so that the residual is the target's
own distribution. (The specification has a one-hot token there; where the head is wider than the tokenizer that token
may not be chosen.) Greedy and coupled verification need the tokens only, and no distributions are kept for them.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from deepinfer_core.errors import CapacityError, ShapeContractError
from deepinfer_samplers import shortcuts

NO_DRAFT: Final = -1
_FIXED_BYTES: Final = 12
"""Of a row: token, its log-probability, confidence."""


def row_bytes(vocab_size: int, *, distributions: bool) -> int:
    """Bytes of one draft: fp32 probabilities of the whole vocabulary are nearly all of them."""
    return _FIXED_BYTES + (4 * vocab_size if distributions else 0)


class DraftPool:
    """Rows ``slot * num_draft + j`` of draft j in each slot. Slot 0 is never written. The rows ``spilled``
    behind the last slot are never read: they take what belongs to no sequence where the number of writes is fixed.

    Probabilities are kept, not their logarithms: verification compares and subtracts probabilities.

    :param distributions: Whether rejection sampling verifies: it needs the distribution that a draft came from.
    :raises CapacityError: the device has too little memory.
    """

    def __init__(
        self, slots: int, num_draft: int, vocab_size: int, *, distributions: bool, device: torch.device
    ) -> None:
        rows = (slots + 1) * num_draft
        self.num_draft = num_draft
        self.slots = slots
        self.spilled = np.arange(rows, rows + num_draft)
        try:
            self.tokens = torch.full((rows + num_draft,), NO_DRAFT, dtype=torch.int32, device=device)
            self.logprobs = torch.zeros(rows + num_draft, device=device)
            self.confidence = torch.zeros(rows + num_draft, device=device)
            self.probabilities = torch.zeros((rows, vocab_size), device=device) if distributions else None
        except (RuntimeError, MemoryError) as err:
            needed = rows * row_bytes(vocab_size, distributions=distributions)
            raise CapacityError(
                f"the draft pool of {slots} sequences with {num_draft} drafts needs {-(-needed // 2**20)} MiB",
                reason=f"{str(err).splitlines()[0]}" if str(err) else "the device has too little memory",
                remedy="lower --max-num-seqs or --draft-tokens, or set --verify coupled, which keeps no distributions",
                details={"needed_bytes": needed},
            ) from err

    def rows(self, slots: npt.NDArray[np.integer], step: int | None = None) -> npt.NDArray[np.int64]:
        """The row of draft ``step`` in each of ``slots``, int64 ``[n]``; those of all drafts, ``[n, K]``, without one.

        :raises ShapeContractError: a slot is not of this pool.
        """
        if len(slots) and not 0 <= int(slots.min()) <= int(slots.max()) <= self.slots:
            raise ShapeContractError(
                f"sampler 'canonical': draft slots: expected 0..{self.slots}, got {slots.min()}..{slots.max()}",
                reason="the pool was made for max_num_seqs of the engine",
                details={"field": "draft_write_slot"},
            )
        begins = slots.astype(np.int64) * self.num_draft
        return begins[:, None] + np.arange(self.num_draft) if step is None else begins + step

    def write(
        self, rows: torch.Tensor, tokens: torch.Tensor, logprobs: torch.Tensor, confidence: torch.Tensor | None
    ) -> None:
        """Tokens int with their log-probabilities f32 and confidences f32 into ``rows`` int64, all of one shape."""
        self.tokens[rows] = tokens.to(torch.int32)
        self.logprobs[rows] = logprobs
        self.confidence[rows] = confidence if confidence is not None else 0.0

    def write_distributions(self, rows: npt.NDArray[np.int64], probabilities: torch.Tensor) -> None:
        """f32 ``[r, V]`` into ``rows``, where distributions are kept."""
        if self.probabilities is not None:
            self.probabilities[shortcuts.upload(rows, self.tokens.device)] = probabilities
