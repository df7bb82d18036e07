"""Repetition, presence and frequency penalties, and the counts that they need (``spec/sampling.md`` 2.2, step 5).

The counts of a request live in a row of a pool where the logits are, and go on from step to step: the tokens of a step
are counted on the device, without waiting for them. Only requests that use a penalty have a row. What a row holds::

    state   i32 [V]    1 if the prompt has the token, + 2 for each time it was output; 0: it was never seen
    listed  i32 [C]    tokens that may have been seen, in any order, again and again; the rest is token 0

Only listed tokens are looked at, so a step costs what a request has written, not the size of the vocabulary.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from deepinfer_samplers import shortcuts
from deepinfer_samplers.parameters import PenaltyParameters, RowParameters, StepParameters
from deepinfer_samplers.reading import misfit

_LARGEST: Final = float(np.finfo(np.float32).max)
_FIRST_LISTED: Final = 256


class Penalties:
    """The counts of the requests that use a penalty, by their slot.

    A slot's counts start again where its request brings its history, and go when the slot is seen with a request that
    uses none. So at most ``max_num_seqs`` slots have any.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._row_of: dict[int, int] = {}
        self._free: list[int] = []
        self._length = np.zeros(0, np.int64)
        """Entries of each row's list that are in use."""
        self._state = torch.zeros((0, vocab_size), dtype=torch.int32)
        self._listed = torch.zeros((0, min(_FIRST_LISTED, vocab_size)), dtype=torch.int32)

    def __len__(self) -> int:
        return len(self._row_of)

    def begin(self, step: StepParameters, device: torch.device) -> None:
        """Take in the histories of a step, and forget slots whose requests use no penalty.

        :raises ShapeContractError: a request uses a penalty, brings no history, and its slot has no counts.
        """
        given = step.penalties
        if step.slots is not None and self._row_of:
            asked = np.zeros(len(step), np.bool_) if given is None else given.asked()
            for slot in set(step.slots[~asked].tolist()) & self._row_of.keys():
                self._free.append(self._row_of.pop(slot))
        if given is None:
            return
        if self._state.device != device:
            self._state, self._listed = self._state.to(device), self._listed.to(device)
        asked = given.asked()
        for i in np.flatnonzero(asked).tolist():
            slot = int(given.slot[i])
            if i in given.histories:
                self._restart(self._row(slot), *given.histories[i])
            elif slot not in self._row_of:
                raise misfit("history_ids", f"the tokens of request {i}, whose slot {slot} has no counts yet", "none")

    def apply(
        self,
        logits: torch.Tensor,
        given: PenaltyParameters,
        rows: RowParameters,
        drafts: torch.Tensor | None,
    ) -> None:
        """Change ``logits`` f32 ``[r, V]`` of ``rows`` in place.

        :param drafts: int64 ``[r, K]``: the drafts that count as output before each row, -1 for none; None if no row
            has any.
        """
        chosen = np.flatnonzero(given.asked()[rows.request])
        if not len(chosen):
            return
        requests = rows.request[chosen]
        places = np.array([self._row_of[slot] for slot in given.slot[requests].tolist()])
        device = logits.device
        at = shortcuts.upload(chosen, device).unsqueeze(1)
        place = shortcuts.upload(places, device)
        repetition, presence, frequency = (
            shortcuts.upload(column[requests], device).unsqueeze(1)
            for column in (given.repetition, given.presence, given.frequency)
        )
        tokens = self._listed[place, : int(self._length[places].max())].long()
        state = self._state[place.unsqueeze(1), tokens]
        before = logits[at, tokens]
        drafted = None
        if drafts is not None:  # read before anything changes, written after everything else
            some = drafts[at.squeeze(1)]
            wanted = torch.where(some >= 0, some, some[:, :1]).clamp_(min=0)
            equal = (wanted.unsqueeze(2) == some.unsqueeze(1)).sum(2)
            seen = self._state[place.unsqueeze(1), wanted] + 2 * equal.to(torch.int32)
            drafted = wanted, _penalised(logits[at, wanted], seen, repetition, presence, frequency)
        logits[at, tokens] = _penalised(before, state, repetition, presence, frequency)
        if drafted is not None:
            logits[at, drafted[0]] = drafted[1]

    def advance(self, step: StepParameters, tokens: torch.Tensor) -> None:
        """Count what the step emits.

        :param tokens: int ``[R]`` on the device: the token that each row emits, -1 where it emits none.
        """
        if step.penalties is None:
            return
        chosen = np.flatnonzero(step.penalties.asked()[step.rows.request])
        requests = step.rows.request[chosen]
        places = np.array([self._row_of[slot] for slot in step.penalties.slot[requests].tolist()])
        places_used, used = np.unique(places, return_counts=True)
        self._reserve(int((self._length[places_used] + used).max()))
        device = tokens.device
        place, emitted = shortcuts.upload(places, device), tokens[shortcuts.upload(chosen, device)].long()
        is_token = emitted >= 0
        emitted = emitted.clamp(min=0)
        flat = place * self._vocab_size + emitted
        self._state.view(-1).index_add_(0, flat, 2 * is_token.to(torch.int32))
        at = self._length[places] + step.rows.offset[chosen]
        fits = np.flatnonzero(self._length[places] < self._vocab_size)  # a full list names every token already
        if len(fits):
            some = shortcuts.upload(fits, device)
            self._listed[place[some], shortcuts.upload(at[fits], device)] = emitted[some].to(torch.int32)
        self._length[places_used] = np.minimum(self._length[places_used] + used, self._vocab_size)
        for row in places_used[self._length[places_used] == self._vocab_size].tolist():
            self._listed[row, : self._vocab_size] = torch.arange(self._vocab_size, device=device)

    def _restart(self, row: int, tokens: npt.NDArray[np.int32], n_outputs: int) -> None:
        tokens = tokens.astype(np.int64)
        is_output = np.arange(len(tokens)) >= len(tokens) - n_outputs
        known = tokens < self._vocab_size  # a prompt may hold ids that cannot be chosen
        listed, counts = np.unique(tokens[known & is_output], return_counts=True)
        state = np.zeros(self._vocab_size, np.int32)
        state[tokens[known & ~is_output]] = 1
        state[listed] += 2 * counts.astype(np.int32)
        seen = np.flatnonzero(state)
        self._reserve(len(seen))
        device = self._state.device
        self._state[row] = shortcuts.upload(state, device)
        self._listed[row, : len(seen)] = shortcuts.upload(seen.astype(np.int32), device)
        self._listed[row, len(seen) :] = 0
        self._length[row] = len(seen)

    def _row(self, slot: int) -> int:
        if slot in self._row_of:
            return self._row_of[slot]
        if not self._free:
            old = len(self._state)
            new = max(4, 2 * old)
            self._state = _grown(self._state, new, self._state.shape[1])
            self._listed = _grown(self._listed, new, self._listed.shape[1])
            self._length = np.concatenate([self._length, np.zeros(new - old, np.int64)])
            self._free = list(range(new - 1, old - 1, -1))
        self._row_of[slot] = self._free.pop()
        return self._row_of[slot]

    def _reserve(self, width: int) -> None:
        held = self._listed.shape[1]
        if width > held:
            wider = max(width, min(2 * held, self._vocab_size))
            self._listed = _grown(self._listed, len(self._listed), wider)


def _penalised(
    logits: torch.Tensor, state: torch.Tensor, repetition: torch.Tensor, presence: torch.Tensor, frequency: torch.Tensor
) -> torch.Tensor:
    """The logits of tokens after the penalties; all ``[r, C]`` or ``[r, 1]``."""
    count = (state >> 1).to(torch.float32)
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    changed = torch.where(state > 0, repeated, logits) - frequency * count - presence * (count > 0)
    # A factor must not turn a finite logit into an infinite one, nor a masked one into NaN.
    return torch.where(logits.isfinite(), changed.clamp(-_LARGEST, _LARGEST), logits)


def _grown(tensor: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    larger = torch.zeros((rows, columns), dtype=tensor.dtype, device=tensor.device)
    larger[: tensor.shape[0], : tensor.shape[1]] = tensor
    return larger
