"""What a step asks of the sampler, read from `SamplerInputs` once, on the host; what it cannot do is refused by name.

The parameters are a few numbers a request and decide which work runs at all, so they are wanted on the host. Arrays may
be numpy arrays or tensors of any device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from attrs import astuple, frozen

from deepinfer_contracts import SamplerInputs
from deepinfer_core.errors import NotSupported, ShapeContractError

_NEUTRAL: Final = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""Columns that must hold this value throughout."""
_ABSENT: Final = {
    "bias": "logit_bias",
    "bias_value": "logit_bias",
    "selected_prompt_rows": "prompt_logprobs",
    "prompt_tokens": "prompt_logprobs",
    "grammar_mask": "structured output",
    "grammar_rows": "structured output",
}
"""Fields that must be absent or empty, and what they belong to."""


@frozen
class RowParameters:
    """One entry a row, request after request; a request's rows are those of its next tokens, in order."""

    request: npt.NDArray[np.intp]
    """Which request of the step."""
    offset: npt.NDArray[np.intp]
    """0 for the first row of a request; each row of drafts before it adds one."""
    temperature: npt.NDArray[np.float32]
    top_p: npt.NDArray[np.float32]
    min_p: npt.NDArray[np.float32]
    top_k: npt.NDArray[np.int32]
    seed: npt.NDArray[np.uint64]
    position: npt.NDArray[np.int32]
    """Absolute index of the token that the row gives."""
    forced: npt.NDArray[np.int32] | None
    """Token that replaces the drawn one, -1 for none; None if no row has one."""

    def __len__(self) -> int:
        return len(self.request)

    def pick(self, rows: slice | npt.NDArray[np.intp]) -> RowParameters:
        """The parameters of some of the rows."""
        columns: tuple[Any, ...] = astuple(self, recurse=False)
        return RowParameters(*(None if column is None else column[rows] for column in columns))


@frozen
class Edits:
    """Single logits that change: ``tokens[i]`` of row ``rows[i]``, ordered by row."""

    rows: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]

    def within(self, part: slice) -> Edits | None:
        """Those of the rows in ``part``, counted from its start; None if there are none."""
        start, stop = np.searchsorted(self.rows, (part.start, part.stop))
        return Edits(self.rows[start:stop] - part.start, self.tokens[start:stop]) if stop > start else None


@frozen
class StepParameters:
    """All of a step. Rows are counted request after request, wherever they lie among the logits."""

    rows: RowParameters
    first: npt.NDArray[np.intp]
    """``[N + 1]``: request i has the rows ``[first[i], first[i + 1])``."""
    source: npt.NDArray[np.int64] | None
    """Row of the logits of each row; None if it is the same one."""
    suppressed: Edits | None
    """Tokens that may not be chosen now."""

    def __len__(self) -> int:
        return len(self.first) - 1


def read(inputs: SamplerInputs, n_rows: int, width: int, vocab_size: int) -> StepParameters:
    """Read and check one step's parameters against logits of ``n_rows`` rows and ``width`` columns.

    :raises NotSupported: the step asks for penalties, bias, a grammar or lists of logprobs.
    :raises ShapeContractError: an array's length, a row or a token id does not fit the logits.
    """
    _refuse_unsupported(inputs)
    temperature = host(inputs.temperature)
    n = len(temperature)
    columns = {name: host(getattr(inputs, name)) for name in ("top_p", "min_p", "top_k", "seed", "sample_pos")}
    for name, column in columns.items():
        if column.shape != (n,):
            raise _misfit(name, f"shape ({n},), one entry a request", f"shape {column.shape}")
    first, source = _layout(inputs, n, n_rows)
    counts = np.diff(first)
    request = np.repeat(np.arange(n), counts)
    offset = np.arange(len(request)) - first[request]
    position = columns.pop("sample_pos")[request] + offset.astype(np.int32)
    rows = RowParameters(
        request=request,
        offset=offset,
        temperature=temperature[request],
        position=position,
        forced=_forced(inputs, len(request), source, vocab_size),
        **{name: column[request] for name, column in columns.items()},
    )
    return StepParameters(rows, first, source, _suppressed(inputs, source, n_rows, width, vocab_size))


def of_drafts(inputs: SamplerInputs) -> StepParameters:
    """A row for each request, with its parameters; the position is that of the first token of the step.

    Tokens that may not be chosen yet, and tokens that are forced, are no matter here: a draft is a proposal only.
    """
    n = len(host(inputs.temperature))
    every = np.arange(n)
    names = ("temperature", "top_p", "min_p", "top_k", "seed")
    columns = {name: host(getattr(inputs, name)) for name in names}
    zeros = np.zeros_like(every)
    rows = RowParameters(request=every, offset=zeros, position=host(inputs.sample_pos), forced=None, **columns)
    return StepParameters(rows, np.arange(n + 1), None, None)


def host(array: Any) -> npt.NDArray[Any]:
    """``array`` (numpy, or a tensor of any device) as a numpy array; host memory is shared."""
    if isinstance(array, np.ndarray):
        return array
    numpy: npt.NDArray[Any] = array.cpu().numpy()
    return numpy


def _present(array: Any) -> bool:
    return array is not None and len(array) > 0


def _refuse_unsupported(inputs: SamplerInputs) -> None:
    for name, neutral in _NEUTRAL.items():
        values = getattr(inputs, name, None)
        if _present(values) and bool((host(values) != neutral).any()):
            raise _unsupported(name, name, f"leave {name} at {neutral}")
    for name, feature in _ABSENT.items():
        values = getattr(inputs, name, None)
        if isinstance(values, Sequence):  # one array for each draft step, absent ones None
            asked = any(_present(value) for value in values)
        else:
            asked = _present(values)
        if asked:
            raise _unsupported(name, feature, f"send the request without {feature}")
    if inputs.max_top_logprobs:
        raise _unsupported("max_top_logprobs", "top_logprobs", "ask for top_logprobs=0")


def _layout(inputs: SamplerInputs, n: int, n_rows: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int64] | None]:
    """Where each request's rows begin, and which rows of the logits they are."""
    first, counts = (getattr(inputs, name, None) for name in ("first_row", "row_count"))
    ends = np.arange(n + 1)
    if _present(counts):
        lengths = host(counts)
        if lengths.shape != (n,):
            raise _misfit("row_count", f"shape ({n},), one entry a request", f"shape {lengths.shape}")
        if n and int(lengths.min()) < 1:
            raise _misfit("row_count", "at least 1", f"{lengths.min()}")
        np.cumsum(lengths, out=ends[1:])
    total = int(ends[-1])
    if not _present(first):
        if n_rows < total:
            raise _misfit("logits", f"at least {total} rows, one a request", f"{n_rows} rows")
        return ends, None
    starts = host(first)
    if starts.shape != (n,):
        raise _misfit("first_row", f"shape ({n},), one entry a request", f"shape {starts.shape}")
    if np.array_equal(starts, ends[:-1]) and total <= n_rows:
        return ends, None
    source = np.arange(total) + np.repeat(starts - ends[:-1], np.diff(ends))
    if n and (int(source.min()) < 0 or int(source.max()) >= n_rows):
        raise _misfit("first_row", f"rows of the logits, 0..{n_rows - 1}", f"{source.min()}..{source.max()}")
    return ends, source


def _forced(
    inputs: SamplerInputs, n: int, source: npt.NDArray[np.int64] | None, vocab_size: int
) -> npt.NDArray[np.int32] | None:
    values = getattr(inputs, "forced", None)
    if not _present(values):
        return None
    forced = host(values)
    needed = n if source is None else int(source.max()) + 1
    if len(forced) < needed:
        raise _misfit("forced", f"at least {needed} entries, one a row", f"{len(forced)}")
    forced = forced[:n] if source is None else forced[source]
    if int(forced.max()) >= vocab_size:
        raise _misfit("forced", f"token ids below {vocab_size}, or -1", f"{forced.max()}")
    return forced if bool((forced >= 0).any()) else None


def _suppressed(
    inputs: SamplerInputs, source: npt.NDArray[np.int64] | None, n_rows: int, width: int, vocab_size: int
) -> Edits | None:
    values = getattr(inputs, "eos_suppress", None)
    if not _present(values):
        return None
    pairs = host(values)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise _misfit("eos_suppress", "shape (X, 2)", f"shape {pairs.shape}")
    low, high = pairs.min(0), pairs.max(0)
    if int(low.min()) < 0 or int(high[0]) >= n_rows or int(high[1]) >= width:
        bounds = f"(0..{n_rows - 1}, 0..{width - 1})"
        got = f"{tuple(low.tolist())} to {tuple(high.tolist())}"
        raise _misfit("eos_suppress", f"(logit row, token) within {bounds}", got)
    rows, tokens = pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64)
    if source is not None:
        place = np.full(n_rows, -1)
        place[source] = np.arange(len(source))
        rows = place[rows]
    keep = (tokens < vocab_size) & (rows >= 0)  # others cannot be chosen anyway
    order = np.argsort(rows[keep], kind="stable")
    return Edits(rows[keep][order], tokens[keep][order])


def _unsupported(field: str, feature: str, remedy: str) -> NotSupported:
    return NotSupported(
        f"sampler 'canonical' does not support {feature}: SamplerInputs.{field} is set",
        reason="this release draws one token a request from temperature, min_p, top_p and top_k",
        remedy=remedy,
        details={"field": field},
    )


def _misfit(field: str, expected: str, got: str) -> ShapeContractError:
    return ShapeContractError(
        f"sampler 'canonical': {field}: expected {expected}, got {got}",
        reason="SamplerInputs and logits of one step must agree",
        details={"field": field},
    )
