"""Some rows of a step, ready to be chosen from: steps 1 to 7 of ``spec/sampling.md`` 2.2.

A row is a row: whether it is the only one of its request or one of a verification, it is treated alike, and nothing
here looks across rows. Masks and other changes are made in a copy of a few rows, which stays in the caches of a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from attrs import frozen

from deepinfer_samplers import ranking, shortcuts
from deepinfer_samplers.filters import Distribution, Filters, process
from deepinfer_samplers.parameters import RowParameters, StepParameters

GREEDY_BELOW: Final = np.float32(1e-5)
"""Temperatures below this one mean greedy: the best token, without arithmetic on the logits."""

ROW_OK: Final = 0
ROW_NAN: Final = 1
"""The model's logits hold a NaN or +inf, or no finite value at all."""
ROW_NOTHING_ALLOWED: Final = 2
"""Masks left no finite logit."""

_CHUNK_ELEMENTS: Final = {"cpu": 2**18}
"""Logits worked on at once, which bounds scratch memory and keeps it in the caches of a CPU."""
_CHUNK_ELEMENTS_DEVICE: Final = 2**25


@frozen
class Rows:
    """``r`` consecutive rows of a step. Tensors lie where the logits do."""

    at: slice
    """Which rows of the step."""
    parameters: RowParameters
    """Of these rows, on the host."""
    logits: torch.Tensor
    """f32 ``[r, V]`` without NaN or +inf; -inf marks what may not be chosen. Failed rows hold zeros."""
    raw: torch.Tensor
    """f32 ``[r, V]`` as the model gave them."""
    best: torch.Tensor
    """int64 ``[r]``, the greedy choice: highest logit, lowest id on ties."""
    peaks: torch.Tensor
    """f32 ``[r]``, its logit."""
    failed: torch.Tensor | None
    """bool ``[r]``: nothing can be chosen; None where it can be known that there are none."""
    status: torch.Tensor
    """int8 ``[r]``: ``ROW_OK``, ``ROW_NAN`` or ``ROW_NOTHING_ALLOWED``."""

    def __len__(self) -> int:
        return len(self.parameters)

    def drawn(self) -> npt.NDArray[np.intp]:
        """The rows that are drawn from a distribution, not greedy."""
        return np.flatnonzero(self.parameters.temperature >= GREEDY_BELOW)

    def distribution(self, rows: npt.NDArray[np.intp]) -> Distribution:
        """Steps 8 to 12 for ``rows`` of these, which are not greedy."""
        device, width = self.logits.device, self.logits.shape[-1]
        logits, peaks = self.logits, self.peaks
        if len(rows) != len(self):
            index = shortcuts.upload(rows, device)
            logits, peaks = logits[index], peaks[index]
        return process(logits, peaks, _filters(self.parameters.pick(rows), width, device))


def parts(logits: torch.Tensor, step: StepParameters, vocab_size: int) -> Iterator[Rows]:
    """All rows of a step in order, a few at a time.

    :param logits: f32 ``[R, V]``, ``V`` at least ``vocab_size``; columns and rows beyond are padding. Not changed.
    """
    limit = _CHUNK_ELEMENTS.get(logits.device.type, _CHUNK_ELEMENTS_DEVICE)
    total, size = len(step.rows), max(1, limit // vocab_size)
    logits = logits[:, :vocab_size]
    for start in range(0, total, size):
        yield _prepare(logits, step, slice(start, min(start + size, total)))


def _prepare(logits: torch.Tensor, step: StepParameters, at: slice) -> Rows:
    raw = logits[at] if step.source is None else logits[shortcuts.upload(step.source[at], logits.device)]
    best, peaks = _best(raw)
    broken = ~peaks.isfinite()  # the peak is the row's NaN if it holds one
    failed, allowed = broken, raw
    suppressed = None if step.suppressed is None else step.suppressed.within(at)
    if suppressed is not None:
        allowed = raw.clone()
        places = shortcuts.upload(suppressed.rows, raw.device), shortcuts.upload(suppressed.tokens, raw.device)
        allowed[places] = float("-inf")
        best, peaks = _best(allowed)
        failed = broken | ~peaks.isfinite()
    status = torch.zeros(len(raw), dtype=torch.int8, device=raw.device)
    if shortcuts.is_clear(failed):
        return Rows(at, step.rows.pick(at), allowed, raw, best, peaks, None, status)
    status.masked_fill_(failed, ROW_NOTHING_ALLOWED).masked_fill_(broken, ROW_NAN)
    # Such a row runs along with harmless values, and what is chosen from it is replaced at the end.
    allowed, peaks = allowed.masked_fill(failed.unsqueeze(1), 0.0), peaks.masked_fill(failed, 0.0)
    return Rows(at, step.rows.pick(at), allowed, raw, best, peaks, failed, status)


def _best(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    best = ranking.best(logits)
    return best, logits.gather(1, best.unsqueeze(1)).squeeze(1)


def _filters(rows: RowParameters, width: int, device: torch.device) -> Filters:
    """The parameters of ``rows`` on ``device``, with filters that no row needs left out."""

    def put(array: npt.NDArray[np.generic]) -> torch.Tensor:
        return shortcuts.upload(array, device)

    top_p, top_k, min_p = rows.top_p, rows.top_k.astype(np.int64), rows.min_p
    top_k = np.where((top_k < 1) | (top_k > width), width, top_k)
    ordered = np.flatnonzero((top_p < 1.0) | (top_k < width))
    return Filters(
        temperature=put(rows.temperature),
        min_p=put(min_p) if (min_p > 0.0).any() else None,
        ordered=put(ordered) if len(ordered) else None,
        top_p=put((top_p.astype(np.float64) * 2.0**31).astype(np.int64)),
        top_k=put(top_k),
    )
