"""What is reported of a choice: log-probabilities, alternatives, the audit statistic (``spec/sampling.md`` 1.2).

A request gets the log-probabilities of the processed distribution, in which a filtered token has -inf and a greedy
choice has 0, or those of the model's own distribution before any step of 2.2. Sums are counted in fixed point as in
`filters`, so a value does not depend on the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from attrs import frozen

from deepinfer_samplers import ranking, shortcuts
from deepinfer_samplers.filters import MASS_ONE, Distribution, mass
from deepinfer_samplers.fused import Chosen
from deepinfer_samplers.parameters import StepParameters
from deepinfer_samplers.rows import Rows

NO_ALTERNATIVE: Final = -1


@frozen
class Description:
    """Of one token in each of ``r`` rows."""

    logprobs: torch.Tensor
    """f32 ``[r]``; -inf where the row has failed or the token cannot be chosen."""
    top_ids: torch.Tensor | None
    """i32 ``[r, M]``, the best alternatives in rank order, the chosen token among them if it is one; -1 for none: a
    token that cannot be chosen is no alternative. None if no request of the step wants any."""
    top_logprobs: torch.Tensor | None
    """f32 ``[r, M]``, 0 where there is none."""
    sum_smaller: torch.Tensor | None
    """f32 ``[r]``: mass of tokens with a lower probability, or an equal one and no higher id; None if not asked."""


def describe(
    rows: Rows,
    drawn: npt.NDArray[np.intp],
    distribution: Distribution | Chosen | None,
    tokens: torch.Tensor,
    step: StepParameters,
    *,
    sum_smaller: bool = False,
) -> Description:
    """Step 14 for ``rows``.

    :param drawn: `Rows.drawn`, and ``distribution`` that of these rows; None if there are none. Where nothing but
        their tokens' log-probabilities is asked for, what was chosen in one launch will do.
    :param tokens: int ``[r]``, ids of the vocabulary.
    """
    device, n = rows.logits.device, len(rows)
    tokens = tokens.long()
    index: Any = None
    if distribution is not None and len(drawn) == n:
        index = slice(None)
        logprobs = distribution.logprobs(tokens)
    else:
        logprobs = torch.zeros(n, device=device)
        if tokens is not rows.best:  # which are certain: probability 1
            logprobs.masked_fill_(tokens != rows.best, float("-inf"))
        if distribution is not None:
            index = shortcuts.upload(drawn, device)
            logprobs[index] = distribution.logprobs(tokens[index])
    raw = _raw_rows(rows, step)
    model = None
    if len(raw):
        model = _ModelRows(rows, raw)
        logprobs[model.index] = model.logprobs(tokens[model.index])
    tops = _Alternatives(n, step.width, device) if step.top is not None else None
    if tops is not None and step.top is not None:
        wanted = step.top[rows.parameters.request]
        _fill(tops, rows, wanted, drawn, distribution, raw, model)
    smaller = None
    if sum_smaller:
        smaller = (tokens == rows.best).to(torch.float32)
        if distribution is not None:
            smaller[index] = _mass_below(distribution.probabilities, tokens[index])
    if rows.failed is not None:
        logprobs.masked_fill_(rows.failed, float("-inf"))
        if smaller is not None:
            smaller.masked_fill_(rows.failed, 0.0)
        if tops is not None:
            tops.ids.masked_fill_(rows.failed.unsqueeze(1), NO_ALTERNATIVE)
            tops.logprobs.masked_fill_(rows.failed.unsqueeze(1), 0.0)
    if tops is None:
        return Description(logprobs, None, None, smaller)
    return Description(logprobs, tops.ids, tops.logprobs, smaller)


def model_logprobs(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probability of one token of each row in the model's own distribution.

    :param logits: f32 ``[r, V]``; ``tokens`` int64 ``[r]``.
    :returns: f32 ``[r]``, NaN for a row that holds NaN or +inf, or no finite value.
    """
    best = ranking.best(logits)
    peaks = logits.gather(1, best.unsqueeze(1)).squeeze(1)
    broken = ~peaks.isfinite()
    if not shortcuts.is_clear(broken):
        logits, peaks = logits.masked_fill(broken.unsqueeze(1), 0.0), peaks.masked_fill(broken, 0.0)
    values = logits.gather(1, tokens.unsqueeze(1)).squeeze(1) - peaks - _log_total(logits, peaks)
    return values.masked_fill_(broken, float("nan"))


class _ModelRows:
    """The model's own distribution of some rows."""

    def __init__(self, rows: Rows, picked: npt.NDArray[np.intp]) -> None:
        self.index = shortcuts.upload(picked, rows.raw.device)
        self.logits = rows.raw[self.index]
        if rows.failed is not None:
            self.logits.masked_fill_(rows.failed[self.index].unsqueeze(1), 0.0)
        self.peaks = self.logits.gather(1, ranking.best(self.logits).unsqueeze(1)).squeeze(1)
        self.log_total = _log_total(self.logits, self.peaks)

    def logprobs(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.logits.gather(1, tokens.unsqueeze(1)).squeeze(1) - self.peaks - self.log_total


class _Alternatives:
    """Lists to be filled, ``[r, M]`` each."""

    def __init__(self, n: int, width: int, device: torch.device) -> None:
        self.ids = torch.full((n, width), NO_ALTERNATIVE, dtype=torch.int32, device=device)
        self.logprobs = torch.zeros((n, width), device=device)

    def put(self, at: torch.Tensor, ids: torch.Tensor, logprobs: torch.Tensor, wanted: npt.NDArray[np.int32]) -> None:
        """The lists of rows ``at``, of which row i wants ``wanted[i]``."""
        count = ids.shape[1]
        listed = shortcuts.upload(np.arange(count) < wanted[:, None], ids.device) & logprobs.isfinite()
        self.ids[at, :count] = torch.where(listed, ids.to(torch.int32), NO_ALTERNATIVE)
        self.logprobs[at, :count] = torch.where(listed, logprobs, 0.0)


def _fill(
    tops: _Alternatives,
    rows: Rows,
    wanted: npt.NDArray[np.int32],
    drawn: npt.NDArray[np.intp],
    distribution: Distribution | None,
    raw: npt.NDArray[np.intp],
    model: _ModelRows | None,
) -> None:
    device, width = rows.logits.device, rows.logits.shape[1]
    is_raw, is_drawn = np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
    is_raw[raw], is_drawn[drawn] = True, True
    greedy = np.flatnonzero(~is_raw & ~is_drawn & (wanted > 0))
    if len(greedy):  # all the mass is on the best token
        at = shortcuts.upload(greedy, device)
        tops.put(at, rows.best[at].unsqueeze(1), torch.zeros((len(greedy), 1), device=device), wanted[greedy])
    among = np.flatnonzero((wanted > 0)[drawn] & ~is_raw[drawn])
    if distribution is not None and len(among):
        listed = drawn[among]
        at, inside = shortcuts.upload(listed, device), shortcuts.upload(among, device)
        logits = rows.logits[at]
        if distribution.dropped is not None:
            logits.masked_fill_(distribution.dropped[inside], float("-inf"))
        ids, values = ranking.leaders(logits, min(int(wanted[listed].max()), width))
        logprobs = distribution.scaled[inside].gather(1, ids) - distribution.log_total[inside].unsqueeze(1)
        tops.put(at, ids, logprobs.masked_fill_(values.isneginf(), float("-inf")), wanted[listed])
    among = np.flatnonzero((wanted > 0)[raw])
    if model is not None and len(among):
        inside = shortcuts.upload(among, device)
        ids, values = ranking.leaders(model.logits[inside], min(int(wanted[raw[among]].max()), width))
        logprobs = values - model.peaks[inside].unsqueeze(1) - model.log_total[inside].unsqueeze(1)
        tops.put(model.index[inside], ids, logprobs, wanted[raw[among]])


def _raw_rows(rows: Rows, step: StepParameters) -> npt.NDArray[np.intp]:
    if step.raw is None:
        return np.zeros(0, np.intp)
    return np.flatnonzero(step.raw[rows.parameters.request])


def _log_total(logits: torch.Tensor, peaks: torch.Tensor) -> torch.Tensor:
    relative = (logits - peaks.unsqueeze(1)).exp_()
    return (mass(relative).sum(-1).to(torch.float32) / MASS_ONE).log()


def _mass_below(probabilities: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    own = probabilities.gather(1, tokens.unsqueeze(1))
    numbers = torch.arange(probabilities.shape[1], device=probabilities.device)
    smaller = (probabilities < own) | ((probabilities == own) & (numbers <= tokens.unsqueeze(1)))
    return mass(torch.where(smaller, probabilities, 0.0)).sum(-1).to(torch.float32) / MASS_ONE


def join(parts: Sequence[Description], step: StepParameters, device: torch.device, *, sum_smaller: bool) -> Description:
    """All rows of a step from its parts."""
    none = torch.zeros(0, device=device)
    ids = logprobs = smaller = None
    if step.top is not None:
        width = step.width
        ids = joined([part.top_ids for part in parts if part.top_ids is not None], none.to(torch.int32).view(0, width))
        logprobs = joined([part.top_logprobs for part in parts if part.top_logprobs is not None], none.view(0, width))
    if sum_smaller:
        smaller = joined([part.sum_smaller for part in parts if part.sum_smaller is not None], none)
    return Description(joined([part.logprobs for part in parts], none), ids, logprobs, smaller)


def joined(tensors: Sequence[torch.Tensor], empty: torch.Tensor) -> torch.Tensor:
    """Rows of several parts as one tensor; ``empty`` where there are none."""
    if len(tensors) == 1:
        return tensors[0]
    return torch.cat(list(tensors)) if tensors else empty
