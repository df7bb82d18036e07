"""Some rows of a step, ready to be chosen from: steps 1 to 7 of ``spec/sampling.md`` 2.2.

A row is a row: whether it is the only one of its request or one of a verification, it is treated alike, and nothing
here looks across rows. Masks and other changes are made in a copy of a few rows, which stays in the caches of a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from attrs import frozen

from deepinfer_samplers import ranking, shortcuts
from deepinfer_samplers.bitmask import forbid
from deepinfer_samplers.filters import Distribution, Filters, process
from deepinfer_samplers.fused import Chosen, FusedOps
from deepinfer_samplers.parameters import RowParameters, StepParameters
from deepinfer_samplers.penalties import Penalties
from deepinfer_samplers.third_party import filter_rows, has_filter

Mask = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int], Any]

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
    fused: FusedOps
    """What the backend does in one launch."""

    def __len__(self) -> int:
        return len(self.parameters)

    def drawn(self) -> npt.NDArray[np.intp]:
        """The rows that are drawn from a distribution, not greedy."""
        return np.flatnonzero(self.parameters.temperature >= GREEDY_BELOW)

    def distribution(self, rows: npt.NDArray[np.intp]) -> Distribution:
        """Steps 8 to 12 for ``rows`` of these, which are not greedy."""
        logits, peaks, filters, _ = self._filtered(rows)
        return process(logits, peaks, filters)

    def chosen(self, rows: npt.NDArray[np.intp], keys: npt.NDArray[np.int64], *, is_coupled: bool) -> Chosen | None:
        """Steps 8 to 13 for ``rows`` of these in one launch; None where the backend has none for that.

        :param keys: ``[r]``, of `hashing.draw_keys`, or of `gumbel.noise_keys` if the draws are coupled.
        """
        if self.fused.choose is None:
            return None
        logits, peaks, filters, sent = self._filtered(rows, keys)
        return Chosen(*self.fused.choose(logits, peaks, filters, *sent, coupled=is_coupled))

    def _filtered(
        self, rows: npt.NDArray[np.intp], *more: npt.NDArray[Any]
    ) -> tuple[torch.Tensor, torch.Tensor, Filters, list[torch.Tensor]]:
        """Logits, peaks and filters of some rows, and ``more`` about them on the device."""
        device, width = self.logits.device, self.logits.shape[-1]
        logits, peaks, parameters = self.logits, self.peaks, self.parameters
        if len(rows) != len(self):
            index = shortcuts.upload(rows, device)
            logits, peaks, parameters = logits[index], peaks[index], parameters.pick(rows)
        return logits, peaks, *_filters(parameters, width, device, *more)


class Preparation:
    """Steps 1 to 7 for one vocabulary, with the counts of penalties that go on from step to step.

    :param blacklist: Tokens that are never chosen.
    :param force_top_k: Candidates of every row, whatever its request says; 0: all.
    :param mask: The op ``sample.mask`` of a backend; None: `bitmask.forbid`.
    :param fused: What a backend does in one launch; None: nothing.
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        blacklist: Sequence[int] = (),
        force_top_k: int = 0,
        mask: Mask | None = None,
        fused: FusedOps | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.penalties = Penalties(vocab_size)
        self._blacklist = np.array(sorted(set(blacklist)), np.int64)
        self._force_top_k = force_top_k if 0 < force_top_k < vocab_size else 0
        self._mask = mask or forbid
        self.fused = fused or FusedOps()

    def parts(self, logits: torch.Tensor, step: StepParameters, drafts: torch.Tensor | None = None) -> Iterator[Rows]:
        """All rows of a step in order, a few at a time.

        :param logits: f32 ``[R, V]``, ``V`` at least the vocabulary size; columns and rows beyond are padding. Not
            changed.
        :param drafts: int ``[R]`` on the device, the draft that each row of the step verifies, -1 for none; needed
            where requests have several rows, because penalties count the drafts before a row.
        :raises ShapeContractError: counts are missing that a penalty needs.
        """
        total = len(step.rows)
        size = max(1, total) if self.takes_as_given(step) else chunk_rows(logits.device, self.vocab_size)
        self.penalties.begin(step, logits.device)
        before = None if step.penalties is None else _drafts_before(step, drafts)
        logits = logits[:, : self.vocab_size]
        for start in range(0, total, size):
            yield self._prepare(logits, step, slice(start, min(start + size, total)), before)

    def takes_as_given(self, step: StepParameters) -> bool:
        """Whether every row is greedy and taken as it is, so that all of them can be looked at together."""
        changes = (step.suppressed, step.bias, step.penalties, step.grammar, step.raw)
        if step.parts or self._force_top_k or len(self._blacklist) or any(asked is not None for asked in changes):
            return False
        return not (step.rows.temperature >= GREEDY_BELOW).any()

    def emitted(self, step: StepParameters, tokens: torch.Tensor) -> None:
        """What the step emits, for the penalties of the next one.

        :param tokens: int ``[R]`` on the device: the token that each row emits, -1 where it emits none.
        """
        self.penalties.advance(step, tokens)

    def _prepare(self, logits: torch.Tensor, step: StepParameters, at: slice, before: torch.Tensor | None) -> Rows:
        raw = logits[at] if step.source is None else logits[shortcuts.upload(step.source[at], logits.device)]
        rows = step.rows if at.stop - at.start == len(step.rows) else step.rows.pick(at)
        best, peaks = self._best(raw)
        broken = shortcuts.not_finite(peaks)  # the peak is the row's NaN if it holds one
        failed, allowed = broken, self._changed(raw, step, at, rows, None if before is None else before[at])
        if allowed is not raw:
            best, peaks = self._best(allowed)
            failed = broken | shortcuts.not_finite(peaks)
        if shortcuts.is_clear(failed):
            status = torch.zeros(len(raw), dtype=torch.int8, device=raw.device)
            return Rows(at, rows, allowed, raw, best, peaks, None, status, self.fused)
        status = broken.to(torch.int8)  # ROW_NAN is 1, ROW_OK 0
        if failed is not broken:
            status.masked_fill_(failed & ~broken, ROW_NOTHING_ALLOWED)
        if step.top is not None or step.parts or (rows.temperature >= GREEDY_BELOW).any():
            # Such a row runs along with harmless values, and what is chosen from it is replaced at the end. Where no
            # row is drawn, nobody looks at the values again, and all of them need not be copied for that.
            allowed, peaks = allowed.masked_fill(failed.unsqueeze(1), 0.0), peaks.masked_fill(failed, 0.0)
        return Rows(at, rows, allowed, raw, best, peaks, failed, status, self.fused)

    def _best(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The greedy choice of each row and its logit."""
        if self.fused.best is not None and logits.shape[0]:
            return self.fused.best(logits)
        best = ranking.best(logits)
        return best, logits.gather(1, best.unsqueeze(1)).squeeze(1)

    def _changed(
        self, raw: torch.Tensor, step: StepParameters, at: slice, rows: RowParameters, before: torch.Tensor | None
    ) -> torch.Tensor:
        """Steps 2 to 7 on a copy; ``raw`` itself where there is nothing to do."""
        suppressed = None if step.suppressed is None else step.suppressed.within(at)
        bias = None if step.bias is None else step.bias.within(at)
        grammar = None if step.grammar is None else step.grammar.within(at)
        penalised = step.penalties is not None and bool(step.penalties.asked()[rows.request].any())
        filtered = bool(step.parts) and has_filter(rows, step.parts)
        nothing = suppressed is None and bias is None and grammar is None and not penalised and not filtered
        if nothing and not len(self._blacklist) and not self._force_top_k:
            return raw
        device, logits = raw.device, raw.clone()
        if len(self._blacklist):
            logits[:, shortcuts.upload(self._blacklist, device)] = float("-inf")
        if suppressed is not None:
            at_rows, at_tokens = (shortcuts.upload(part, device) for part in (suppressed.rows, suppressed.tokens))
            logits[at_rows, at_tokens] = float("-inf")
        if bias is not None and bias.values is not None:
            places = shortcuts.upload(bias.rows, device), shortcuts.upload(bias.tokens, device)
            logits.index_put_(places, shortcuts.upload(bias.values, device), accumulate=True)
        if penalised and step.penalties is not None:
            self.penalties.apply(logits, step.penalties, rows, before)
        if filtered:
            filter_rows(logits, rows, step.parts)
        if grammar is not None:
            words, masked = shortcuts.upload(grammar.words, device), shortcuts.upload(grammar.rows, device)
            self._mask(logits, words, masked.to(torch.int32), _numbers(len(logits) + 1, device), 0)
        if self._force_top_k:
            count = torch.full((len(logits),), self._force_top_k, device=device)
            ordered = ranking.highest(logits, min(self._force_top_k + 1, self.vocab_size))
            logits.masked_fill_(ranking.beyond(logits, ordered, count), float("-inf"))
        return logits


def chunk_rows(device: torch.device, width: int) -> int:
    """How many rows of ``width`` logits are worked on at once on ``device``."""
    return max(1, _CHUNK_ELEMENTS.get(device.type, _CHUNK_ELEMENTS_DEVICE) // width)


def _numbers(n: int, device: torch.device) -> torch.Tensor:
    return torch.arange(n, dtype=torch.int32, device=device)


def _drafts_before(step: StepParameters, drafts: torch.Tensor | None) -> torch.Tensor | None:
    """The drafts that come before each row, int64 ``[R, K]`` filled up with -1; None if no row has any."""
    most = int(step.rows.offset.max(initial=0))
    if drafts is None or most == 0:
        return None
    begin, columns = np.arange(len(step.rows)) - step.rows.offset, np.arange(most)
    index = np.minimum(begin[:, None] + columns, len(step.rows) - 1)
    is_before = shortcuts.upload(columns < step.rows.offset[:, None], drafts.device)
    return torch.where(is_before, drafts[shortcuts.upload(index, drafts.device)].long(), -1)


def _filters(
    rows: RowParameters, width: int, device: torch.device, *more: npt.NDArray[Any]
) -> tuple[Filters, list[torch.Tensor]]:
    """The parameters of ``rows`` on ``device``, with filters that no row needs left out, and ``more`` beside them."""
    top_p, top_k, min_p = rows.top_p, rows.top_k.astype(np.int64), rows.min_p
    top_k = np.where((top_k < 1) | (top_k > width), width, top_k)
    ordered = np.flatnonzero((top_p < 1.0) | (top_k < width))
    arrays: list[npt.NDArray[Any]] = [rows.temperature, (top_p.astype(np.float64) * 2.0**31).astype(np.int64), top_k]
    has_min_p = bool((min_p > 0.0).any())
    optional = [*([min_p] if has_min_p else []), *([ordered] if len(ordered) else [])]
    temperature, limit_p, limit_k, *rest = shortcuts.upload_all([*arrays, *optional, *more], device)
    filters = Filters(
        temperature=temperature,
        min_p=rest[0] if has_min_p else None,
        ordered=rest[len(optional) - 1] if len(ordered) else None,
        top_p=limit_p,
        top_k=limit_k,
    )
    return filters, rest[len(optional) :]
