"""`SamplerInputs` of a step, read once, and checked against the logits before anything is computed from them.

Arrays may be numpy arrays or tensors of any device; fields that a record lacks count as absent.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from deepinfer_contracts import SamplerInputs
from deepinfer_core.errors import ShapeContractError
from deepinfer_samplers.parameters import Edits, GrammarMasks, PenaltyParameters, RowParameters, StepParameters


def read(inputs: SamplerInputs, n_rows: int, width: int, vocab_size: int) -> StepParameters:
    """One step's parameters, for logits of ``n_rows`` rows and ``width`` columns.

    :raises ShapeContractError: an array's length, a row or a token id does not fit the logits.
    """
    temperature = host(inputs.temperature)
    n = len(temperature)
    names = ("top_p", "min_p", "top_k", "seed", "sample_pos")
    columns: dict[str, Any] = {name: _column(inputs, name, n) for name in names}
    first, source = _layout(inputs, n, n_rows)
    columns["temperature"], columns["position"] = temperature, columns.pop("sample_pos")
    total = int(first[-1])
    if total == n:  # a row for each request
        request, offset = first[:-1], np.zeros(n, np.intp)
    else:
        request = np.repeat(np.arange(n), np.diff(first))
        offset = np.arange(total) - first[request]
        columns = {name: column[request] for name, column in columns.items()}
        columns["position"] += offset.astype(np.int32)
    rows = RowParameters(request=request, offset=offset, forced=_forced(inputs, total, source, vocab_size), **columns)
    place = _Place(source, n_rows, width, vocab_size)
    slots = _column(inputs, "row_slot", n) if _present(inputs, "row_slot") else None
    top = _column(inputs, "top_logprobs", n) if _present(inputs, "top_logprobs") else None
    most = int(inputs.max_top_logprobs or 0)
    if top is None and most:
        top = np.full(n, most, np.int32)
    raw = _column(inputs, "logprobs_raw", n).astype(np.bool_) if _present(inputs, "logprobs_raw") else None
    return StepParameters(
        rows,
        first,
        source,
        suppressed=place.edits("eos_suppress", getattr(inputs, "eos_suppress", None)),
        bias=place.edits("bias", getattr(inputs, "bias", None), getattr(inputs, "bias_value", None)),
        penalties=_penalties(inputs, slots, n),
        slots=slots,
        grammar=_grammar(inputs, first, vocab_size),
        top=top if most else None,
        width=most,
        raw=raw if raw is not None and raw.any() else None,
    )


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
    return StepParameters(rows, np.arange(n + 1), None)


def greedy_inputs(n: int) -> SamplerInputs:
    """``n`` greedy requests of one row that ask for nothing else."""
    ones, zeros = np.ones(n, np.float32), np.zeros(n, np.float32)
    return SamplerInputs(
        temperature=zeros,
        top_p=ones,
        min_p=zeros,
        top_k=np.full(n, -1, np.int32),
        seed=np.zeros(n, np.uint64),
        sample_pos=np.zeros(n, np.int32),
        repetition_penalty=ones,
        presence_penalty=zeros,
        frequency_penalty=zeros,
    )


def host(array: Any) -> npt.NDArray[Any]:
    """``array`` (numpy, or a tensor of any device) as a numpy array; host memory is shared."""
    if isinstance(array, np.ndarray):
        return array
    numpy: npt.NDArray[Any] = array.cpu().numpy()
    return numpy


def misfit(field: str, expected: str, got: str) -> ShapeContractError:
    """The error for ``field`` of ``SamplerInputs``."""
    return ShapeContractError(
        f"sampler 'canonical': {field}: expected {expected}, got {got}",
        reason="SamplerInputs and logits of one step must agree",
        details={"field": field},
    )


def _present(inputs: SamplerInputs, name: str) -> bool:
    array = getattr(inputs, name, None)
    return array is not None and len(array) > 0


def _column(inputs: SamplerInputs, name: str, n: int) -> npt.NDArray[Any]:
    column = host(getattr(inputs, name))
    if column.shape != (n,):
        raise misfit(name, f"shape ({n},), one entry a request", f"shape {column.shape}")
    return column


def _layout(inputs: SamplerInputs, n: int, n_rows: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int64] | None]:
    """Where each request's rows begin, and which rows of the logits they are."""
    ends = np.arange(n + 1)
    if _present(inputs, "row_count"):
        lengths = _column(inputs, "row_count", n)
        if n and int(lengths.min()) < 1:
            raise misfit("row_count", "at least 1", f"{lengths.min()}")
        np.cumsum(lengths, out=ends[1:])
    total = int(ends[-1])
    if not _present(inputs, "first_row"):
        if n_rows < total:
            raise misfit("logits", f"at least {total} rows, one a request", f"{n_rows} rows")
        return ends, None
    starts = _column(inputs, "first_row", n)
    if np.array_equal(starts, ends[:-1]) and total <= n_rows:
        return ends, None
    source = np.arange(total) + np.repeat(starts - ends[:-1], np.diff(ends))
    if n and (int(source.min()) < 0 or int(source.max()) >= n_rows):
        raise misfit("first_row", f"rows of the logits, 0..{n_rows - 1}", f"{source.min()}..{source.max()}")
    return ends, source


def _forced(
    inputs: SamplerInputs, n: int, source: npt.NDArray[np.int64] | None, vocab_size: int
) -> npt.NDArray[np.int32] | None:
    if not _present(inputs, "forced"):
        return None
    forced = host(inputs.forced)
    needed = n if source is None else int(source.max()) + 1
    if len(forced) < needed:
        raise misfit("forced", f"at least {needed} entries, one a row", f"{len(forced)}")
    forced = forced[:n] if source is None else forced[source]
    if int(forced.max()) >= vocab_size:
        raise misfit("forced", f"token ids below {vocab_size}, or -1", f"{forced.max()}")
    return forced if bool((forced >= 0).any()) else None


class _Place:
    """Where pairs (row of the logits, token) lie among the rows of the step."""

    def __init__(self, source: npt.NDArray[np.int64] | None, n_rows: int, width: int, vocab_size: int) -> None:
        self._source, self._n_rows, self._width, self._vocab_size = source, n_rows, width, vocab_size

    def edits(self, name: str, given: Any, values: Any = None) -> Edits | None:
        if given is None or len(given) == 0:
            return None
        pairs = host(given)
        if pairs.ndim != 2 or pairs.shape[1] != 2:
            raise misfit(name, "shape (X, 2)", f"shape {pairs.shape}")
        low, high = pairs.min(0), pairs.max(0)
        if int(low.min()) < 0 or int(high[0]) >= self._n_rows or int(high[1]) >= self._width:
            bounds = f"(0..{self._n_rows - 1}, 0..{self._width - 1})"
            got = f"{tuple(low.tolist())} to {tuple(high.tolist())}"
            raise misfit(name, f"(logit row, token) within {bounds}", got)
        rows, tokens = pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64)
        if self._source is not None:
            place = np.full(self._n_rows, -1)
            place[self._source] = np.arange(len(self._source))
            rows = place[rows]
        # Rows that nobody samples, and columns beyond the vocabulary, do not matter.
        keep = np.flatnonzero((tokens < self._vocab_size) & (rows >= 0))
        keep = keep[np.argsort(rows[keep], kind="stable")]
        added = None
        if name == "bias":
            added = np.zeros(0, np.float32) if values is None else host(values)
            if added.shape != (len(pairs),):
                raise misfit("bias_value", f"shape ({len(pairs)},), one for each of bias", f"shape {added.shape}")
            added = added[keep]
        return Edits(rows[keep], tokens[keep], added) if len(keep) else None


def _penalties(inputs: SamplerInputs, slots: npt.NDArray[np.int32] | None, n: int) -> PenaltyParameters | None:
    names = ("repetition_penalty", "presence_penalty", "frequency_penalty")
    columns = [_column(inputs, name, n) for name in names]
    # Counting in a list is faster than numpy for a few requests, and as fast for many.
    if all(column.tolist().count(neutral) == n for column, neutral in zip(columns, (1.0, 0.0, 0.0), strict=True)):
        return None
    if slots is None:
        raise misfit("row_slot", f"shape ({n},), because a request uses a penalty", "nothing")
    histories: dict[int, tuple[npt.NDArray[np.int32], int]] = {}
    if _present(inputs, "history_counts"):
        counts, outputs = _column(inputs, "history_counts", n), _column(inputs, "history_outputs", n)
        tokens = (
            host(getattr(inputs, "history_ids", None)) if _present(inputs, "history_ids") else np.zeros(0, np.int32)
        )
        if int(counts.sum()) != len(tokens) or bool((outputs > counts).any() or (outputs < 0).any()):
            raise misfit("history_ids", f"{counts.sum()} tokens, of which outputs are a part", f"{len(tokens)} tokens")
        if len(tokens) and int(tokens.min()) < 0:  # ids beyond the vocabulary are harmless: they cannot be chosen
            raise misfit("history_ids", "token ids of at least 0", f"{tokens.min()}")
        stops = np.cumsum(counts)
        for i in np.flatnonzero(counts).tolist():
            histories[i] = tokens[stops[i] - counts[i] : stops[i]], int(outputs[i])
    repetition, presence, frequency = columns
    return PenaltyParameters(slots, repetition, presence, frequency, histories)


def _grammar(inputs: SamplerInputs, first: npt.NDArray[np.intp], vocab_size: int) -> GrammarMasks | None:
    """The masks of all draft steps together, those of rows that a request does not have left out."""
    listed, masks = getattr(inputs, "grammar_rows", None), getattr(inputs, "grammar_mask", None)
    if listed is None:
        return None
    masks = () if masks is None else masks
    n, needed = len(first) - 1, -(-vocab_size // 32)
    rows: list[npt.NDArray[np.int64]] = []
    words: list[npt.NDArray[np.int32]] = []
    for step, requests in enumerate(listed):
        if requests is None or len(requests) == 0:
            continue
        chosen = host(requests)
        mask = None if step >= len(masks) or masks[step] is None else host(masks[step])
        if mask is None or mask.ndim != 2 or len(mask) < n:
            shape = "nothing" if mask is None else f"shape {mask.shape}"
            raise misfit(f"grammar_mask[{step}]", f"shape ({n}, {needed}), one row a request", shape)
        if int(chosen.min()) < 0 or int(chosen.max()) >= n:
            raise misfit(f"grammar_rows[{step}]", f"requests 0..{n - 1}", f"{chosen.min()}..{chosen.max()}")
        chosen = chosen[first[chosen] + step < first[chosen + 1]]
        rows.append((first[chosen] + step).astype(np.int64))
        words.append(mask[chosen, :needed])
    if not rows:
        return None
    order = np.argsort(np.concatenate(rows))
    joined = np.zeros((len(order), needed), np.int32)  # columns beyond a narrow mask stay forbidden
    filled = np.concatenate(words)[order]
    joined[:, : filled.shape[1]] = filled
    return GrammarMasks(np.concatenate(rows)[order], joined)
