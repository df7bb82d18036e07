"""Greedy steps with drafts, as work that is the same for every step of as many requests.

What such a step asks of the sampler is where its rows lie and which drafts they look at. That goes into memory that
stays where it is, so that a graph which was recorded once serves all steps: rows and requests behind those of a step
are placeholders, which verify nothing and whose drafts go into the pool's spill.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import torch

from deepinfer_contracts import SamplerInputs, SamplerOutput
from deepinfer_samplers import shortcuts
from deepinfer_samplers.outcome import verified_output
from deepinfer_samplers.parameters import StepParameters
from deepinfer_samplers.proposals import Proposer, as_tensor
from deepinfer_samplers.reading import greedy_inputs, host, read
from deepinfer_samplers.rows import Preparation
from deepinfer_samplers.step_drafts import StepDrafts, StepLayout, drafted, layout_arrays
from deepinfer_samplers.verification import choose

if TYPE_CHECKING:
    from deepinfer_core.interfaces import DraftBlock

MOST_STOPS: Final = 8
"""Stop tokens of a request that are looked for here; steps with longer lists are no static ones."""
_NO_TOKEN: Final = -1


class StaticGreedyStep:
    """Implements `deepinfer_core.interfaces.StaticStep` for ``size`` requests with ``K + 1`` rows each."""

    def __init__(self, size: int, proposer: Proposer, preparation: Preparation, *, sum_smaller: bool) -> None:
        self._size, self._proposer, self._preparation = size, proposer, preparation
        self._pool, self._num_draft = proposer.pool, proposer.pool.num_draft
        self._rows = size * (self._num_draft + 1)
        self._sum_smaller = sum_smaller
        self._of_rows, self._of_requests = (_greedy(n, proposer.vocab_size) for n in (self._rows, size))
        self._memory: torch.Tensor | None = None
        self._loaded: tuple[Any, ...] = ()
        self._layout: StepLayout
        self._writes: torch.Tensor
        """int64 ``[size, K]``: rows of the pool that the drafts go to."""
        self._stops: torch.Tensor
        """int32 ``[size, MOST_STOPS]``, filled up with -1."""

    def load(self, drafts: StepDrafts, inputs: SamplerInputs) -> None:
        """What the work reads from now on: one copy, behind what is queued on the device; none where that is what it
        reads already, as from step to step of the same requests."""
        slots, stops = host(inputs.draft_write_slot), host(inputs.stop_ids)
        given = (drafts.first, drafts.places, drafts.verifies, slots, stops)
        key = (stops.shape, *(array.tobytes() for array in given))
        if key == self._loaded:
            return
        *layout, self._writes, self._stops = shortcuts.sent_together(self._arrays(*given), self._send)
        self._layout, self._loaded = StepLayout(*layout), key

    def _arrays(
        self,
        first: npt.NDArray[np.intp],
        places: npt.NDArray[np.int64],
        verifies: npt.NDArray[np.bool_],
        slots: npt.NDArray[np.int32],
        stops: npt.NDArray[np.int32],
    ) -> list[npt.NDArray[Any]]:
        """The fields of the layout, the writes and the stop tokens for all requests, those behind the step's included:
        a placeholder has one row, and what rows are left verify nothing."""
        size, rows, n, used = self._size, self._rows, len(slots), len(places)
        begins = np.arange(size + 1) + (first[-1] - n)
        begins[: n + 1] = first
        all_places, all_verify = np.zeros(rows, np.int64), np.zeros(rows, np.bool_)
        all_places[:used], all_verify[:used] = places, verifies
        arrays = layout_arrays(begins, all_places, all_verify, self._num_draft)
        owned = int(begins[-1])
        request, offset = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        request[:owned], offset[:owned] = arrays[3], arrays[4]
        arrays[3:5] = request, offset
        writes = np.empty((size, self._num_draft), np.int64)
        writes[:] = self._pool.spilled
        writes[:n] = np.where(slots[:, None] > 0, self._pool.rows(slots), self._pool.spilled)
        listed = np.full((size, MOST_STOPS), _NO_TOKEN, np.int32)
        listed[:n, : stops.shape[1]] = stops
        return [*arrays, writes, listed]

    def _send(self, packed: npt.NDArray[np.uint8]) -> torch.Tensor:
        if self._memory is None:
            self._memory = torch.zeros(len(packed), dtype=torch.uint8, device=self._pool.tokens.device)
        return self._memory.copy_(torch.from_numpy(packed), non_blocking=True)

    def verify(self, logits: torch.Tensor) -> SamplerOutput:
        """What `CanonicalSampler.sample` gives, for all rows f32 ``[size * (K + 1), V]``."""
        with torch.inference_mode():
            tokens = drafted(self._pool, self._layout)
            [rows] = self._preparation.parts(logits, self._of_rows)
            choice = choose(rows, self._of_rows, is_coupled=False, proposed=tokens, sum_smaller=self._sum_smaller)
            output, _ = verified_output(self._pool, self._layout, tokens, choice)
            error: Any = torch.as_tensor(output.confidence_error, dtype=torch.float32)
            output.confidence_error = shortcuts.result(error.reshape(1))
            return output

    def draft(self, block: DraftBlock, sampled: SamplerOutput) -> tuple[Any, Any]:
        """What `CanonicalSampler.draft` gives behind :meth:`verify`."""
        device, slots = self._pool.tokens.device, np.zeros(self._size, np.int32)
        with torch.inference_mode():
            last, verified = (as_tensor(values, device) for values in (sampled.sampled_ids, sampled.verified_ids))
            made = self._proposer.propose(block, self._of_requests, last, self._num_draft, None, slots)
            self._pool.write(self._writes, made.ids, made.logprobs, made.confidence)
            confidence = made.confidence
            if confidence is not None:
                confidence = confidence.masked_fill(self._stopped(last, verified).unsqueeze(1), 0.0)
            return shortcuts.result(made.ids), None if confidence is None else shortcuts.result(confidence)

    def _stopped(self, last: torch.Tensor, verified: torch.Tensor) -> torch.Tensor:
        """Whether the tokens of each request hold one of its stop tokens, bool ``[size]``."""
        layout = self._layout
        found = (self._stops[layout.request] == verified.unsqueeze(1)).any(1) & (verified != _NO_TOKEN)
        return (self._stops == last.unsqueeze(1)).any(1) | (found[layout.at] & layout.inside).any(1)


def is_static(step: StepParameters, inputs: SamplerInputs, preparation: Preparation) -> bool:
    """Whether the rows of a step are greedy ones that ask for nothing but tokens, drafts included."""
    asked = step.source is not None or step.rows.forced is not None or step.top is not None
    if asked or len(preparation.penalties) or not preparation.takes_as_given(step):
        return False
    return inputs.draft_write_slot is not None and host(inputs.stop_ids).shape[1] <= MOST_STOPS


def _greedy(n: int, vocab_size: int) -> StepParameters:
    return read(greedy_inputs(n), n, vocab_size, vocab_size)
