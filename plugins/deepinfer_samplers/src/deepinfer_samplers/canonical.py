"""The sampler ``canonical``: masks, filters and the canonical draw over the rows of one step (``spec/sampling.md`` 2).

A request's token is a function of its own logits, parameters, seed and position. Nothing here sums over rows, and sums
along a row are of integers, so neither the place in the batch nor the other requests can change a bit of it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from deepinfer_contracts import SamplerInputs, SamplerOutput
from deepinfer_core.errors import NotSupported, ShapeContractError
from deepinfer_samplers import ranking, shortcuts
from deepinfer_samplers.draw import draw
from deepinfer_samplers.filters import MAX_VOCAB, Filters, process
from deepinfer_samplers.hashing import FRESH, draw_keys
from deepinfer_samplers.parameters import StepParameters, read

GREEDY_BELOW: Final = np.float32(1e-5)
"""Temperatures below this one mean greedy: the best token, without arithmetic on the logits."""

ROW_OK: Final = 0
ROW_NAN: Final = 1
"""The logits hold a NaN, or +inf beside finite values."""
ROW_NOTHING_ALLOWED: Final = 2
"""No logit is finite."""

_CHUNK_ELEMENTS: Final = {"cpu": 2**18}
"""Logits worked on at once, which bounds scratch memory and keeps it in the caches of a CPU."""
_CHUNK_ELEMENTS_DEVICE: Final = 2**25


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
        n, device = len(step), logits.device
        logits, hidden_nan = _suppress(logits, step)
        logits = logits[:, : self.vocab_size]
        rows = slice(n) if step.rows is None else shortcuts.upload(step.rows.astype(np.int64), device)
        logits = logits[rows]
        if hidden_nan is not None:
            hidden_nan = hidden_nan[rows]

        best = ranking.best(logits)
        peaks = logits.gather(1, best.unsqueeze(1)).squeeze(1)
        failed, status = _row_status(logits, peaks, hidden_nan)
        if failed is not None:  # such a row runs along with harmless values, and its token is replaced at the end
            logits, peaks = logits.masked_fill(failed.unsqueeze(1), 0.0), peaks.masked_fill(failed, 0.0)
        ids, logprobs = best.to(torch.int32), torch.zeros(n, device=device)
        forced = None if step.forced is None else shortcuts.upload(step.forced, device)
        if forced is not None:  # all the mass of a greedy row is on its best token
            logprobs.masked_fill_((forced >= 0) & (forced != ids), float("-inf"))
            ids = torch.where(forced >= 0, forced, ids)
        drawn = np.flatnonzero(step.temperature >= GREEDY_BELOW)
        if len(drawn):
            self._draw(logits, peaks, step, drawn, forced, ids, logprobs)
        if failed is not None:
            ids.masked_fill_(failed, 0)
            logprobs.masked_fill_(failed, float("-inf"))
        result = shortcuts.result
        return SamplerOutput(sampled_ids=result(ids), sampled_logprob=result(logprobs), row_status=result(status))

    def _draw(
        self,
        logits: torch.Tensor,
        peaks: torch.Tensor,
        step: StepParameters,
        drawn: npt.NDArray[np.intp],
        forced: torch.Tensor | None,
        ids: torch.Tensor,
        logprobs: torch.Tensor,
    ) -> None:
        """Fill ``ids`` and ``logprobs`` of the requests ``drawn``, a few rows at a time."""
        device = logits.device
        keys = draw_keys(step.seed[drawn], step.sample_pos[drawn], FRESH).view(np.int64)
        limit = _CHUNK_ELEMENTS.get(device.type, _CHUNK_ELEMENTS_DEVICE)
        size = max(1, limit // self.vocab_size)
        for start in range(0, len(drawn), size):
            rows = drawn[start : start + size]
            index = shortcuts.upload(rows, device)
            x, x_peaks = (logits, peaks) if len(rows) == len(logits) else (logits[index], peaks[index])
            distribution = process(x, x_peaks, _filters(step, rows, self.vocab_size, device))
            tokens = draw(distribution.probabilities, shortcuts.upload(keys[start : start + size], device))
            if forced is not None:
                wanted = forced[index]
                tokens = torch.where(wanted >= 0, wanted.long(), tokens)
            ids[index] = tokens.to(torch.int32)
            logprobs[index] = distribution.logprobs(tokens)


def _suppress(logits: torch.Tensor, step: StepParameters) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Mask the suppressed tokens in a copy. Also returns the rows in which the mask hides a NaN: bool ``[R]``."""
    if step.suppressed is None:
        return logits, None
    pairs = shortcuts.upload(step.suppressed.astype(np.int64), logits.device)
    rows, tokens = pairs[:, 0], pairs[:, 1]
    hidden = torch.zeros(len(logits), dtype=torch.int32, device=logits.device)
    hidden.index_add_(0, rows, logits[rows, tokens].isnan().to(torch.int32))
    masked = logits.clone()
    masked[rows, tokens] = float("-inf")
    return masked, hidden > 0


def _row_status(
    logits: torch.Tensor, peaks: torch.Tensor, hidden_nan: torch.Tensor | None
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """(rows that cannot be sampled, bool ``[N]``; status of each, int8 ``[N]``).

    The former is None where it can be known that there are none. ``peaks`` are the highest logits, NaN if a row holds
    one, so that finite peaks need no second pass.
    """
    failed = ~peaks.isfinite()
    if hidden_nan is not None:
        failed |= hidden_nan
    if shortcuts.is_clear(failed):
        return None, torch.zeros(len(peaks), dtype=torch.int8)
    broken = peaks.isnan() | logits.isfinite().any(1)  # an infinity beside finite values is a fault of the model
    if hidden_nan is not None:
        broken |= hidden_nan
    status = broken.to(torch.int8) * (ROW_NAN - ROW_NOTHING_ALLOWED) + ROW_NOTHING_ALLOWED
    return failed, status.masked_fill_(~failed, ROW_OK)


def _filters(step: StepParameters, rows: npt.NDArray[np.intp], vocab_size: int, device: torch.device) -> Filters:
    """The parameters of ``rows`` on ``device``, with filters that no row needs left out."""

    def put(array: npt.NDArray[np.generic]) -> torch.Tensor:
        return shortcuts.upload(array, device)

    top_p, top_k, min_p = step.top_p[rows], step.top_k[rows].astype(np.int64), step.min_p[rows]
    top_k = np.where((top_k < 1) | (top_k > vocab_size), vocab_size, top_k)
    ordered = np.flatnonzero((top_p < 1.0) | (top_k < vocab_size))
    return Filters(
        temperature=put(step.temperature[rows]),
        min_p=put(min_p) if (min_p > 0.0).any() else None,
        ordered=put(ordered) if len(ordered) else None,
        top_p=put((top_p.astype(np.float64) * 2.0**31).astype(np.int64)),
        top_k=put(top_k),
    )
