"""What a step asks of the sampler, read from `SamplerInputs` once, on the host; what it cannot do is refused by name.

The parameters are a few numbers a request and decide which work runs at all, so they are wanted on the host. Arrays may
be numpy arrays or tensors of any device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from attrs import frozen

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
class StepParameters:
    """One entry a request, in request order."""

    temperature: npt.NDArray[np.float32]
    top_p: npt.NDArray[np.float32]
    min_p: npt.NDArray[np.float32]
    top_k: npt.NDArray[np.int32]
    seed: npt.NDArray[np.uint64]
    sample_pos: npt.NDArray[np.int32]
    rows: npt.NDArray[np.int32] | None
    """Row of the logits of each request; None if it is the request's own index."""
    forced: npt.NDArray[np.int32] | None
    """Token that replaces the drawn one, -1 for none; None if no request has one."""
    suppressed: npt.NDArray[np.int32] | None
    """``[X, 2]`` (row of the logits, token) that may not be chosen now; None if there are none."""

    def __len__(self) -> int:
        return len(self.temperature)


def read(inputs: SamplerInputs, n_rows: int, width: int, vocab_size: int) -> StepParameters:
    """Read and check one step's parameters against logits of ``n_rows`` rows and ``width`` columns.

    :raises NotSupported: the step asks for penalties, bias, a grammar, drafts or lists of logprobs.
    :raises ShapeContractError: an array's length, a row or a token id does not fit the logits.
    """
    _refuse_unsupported(inputs)
    temperature = host(inputs.temperature)
    n = len(temperature)
    columns = {name: host(getattr(inputs, name)) for name in ("top_p", "min_p", "top_k", "seed", "sample_pos")}
    for name, column in columns.items():
        if column.shape != (n,):
            raise _misfit(name, f"shape ({n},), one entry a request", f"shape {column.shape}")
    rows = _rows(inputs, n, n_rows)
    return StepParameters(
        temperature=temperature,
        rows=rows,
        forced=_forced(inputs, n, rows, vocab_size),
        suppressed=_suppressed(inputs, n_rows, width, vocab_size),
        **columns,
    )


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
    counts = getattr(inputs, "row_count", None)
    if _present(counts) and bool((host(counts) > 1).any()):
        raise _unsupported("draft_rows", "verification of drafts", "run with draft length 0")
    slots = getattr(inputs, "draft_write_slot", None)
    if _present(slots) and bool((host(slots) != 0).any()):
        raise _unsupported("draft_write_slot", "drafting", "run with draft length 0")


def _rows(inputs: SamplerInputs, n: int, n_rows: int) -> npt.NDArray[np.int32] | None:
    first = getattr(inputs, "first_row", None)
    if not _present(first):
        if n_rows < n:
            raise _misfit("logits", f"at least {n} rows, one a request", f"{n_rows} rows")
        return None
    rows = host(first)
    if rows.shape != (n,):
        raise _misfit("first_row", f"shape ({n},), one entry a request", f"shape {rows.shape}")
    if n and (int(rows.min()) < 0 or int(rows.max()) >= n_rows):
        raise _misfit("first_row", f"rows of the logits, 0..{n_rows - 1}", f"{rows.min()}..{rows.max()}")
    return None if np.array_equal(rows, np.arange(n)) else rows


def _forced(
    inputs: SamplerInputs, n: int, rows: npt.NDArray[np.int32] | None, vocab_size: int
) -> npt.NDArray[np.int32] | None:
    values = getattr(inputs, "forced", None)
    if not _present(values):
        return None
    forced = host(values)
    needed = n if rows is None else int(rows.max()) + 1
    if len(forced) < needed:
        raise _misfit("forced", f"at least {needed} entries, one a row", f"{len(forced)}")
    forced = forced[:n] if rows is None else forced[rows]
    if int(forced.max()) >= vocab_size:
        raise _misfit("forced", f"token ids below {vocab_size}, or -1", f"{forced.max()}")
    return forced if bool((forced >= 0).any()) else None


def _suppressed(inputs: SamplerInputs, n_rows: int, width: int, vocab_size: int) -> npt.NDArray[np.int32] | None:
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
    return pairs if int(high[1]) < vocab_size else pairs[pairs[:, 1] < vocab_size]  # others cannot be chosen anyway


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
