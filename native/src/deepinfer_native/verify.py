"""How many drafts to verify, and whose: the core's decision as pure functions (``spec/engine.md`` 7.3, 7.4)."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt

from deepinfer_native.errors import ArgumentError
from deepinfer_native.library import call, ffi, lib

Values = npt.NDArray[np.float32]
UNITS = 2048
"""Of the value 1, in the budget: a chance counts in whole units."""


def cumulative(confidence: npt.ArrayLike) -> Values:
    """Conditional acceptance ``[N, K]`` -> cumulative, float32, from the left; what is no number counts 0."""
    c = np.array(confidence, dtype=np.float32, ndmin=2)
    c = np.where(c > 0, np.minimum(c, np.float32(1)), np.float32(0)).astype(np.float32)
    return np.cumprod(c, axis=1, dtype=np.float32)


def verify_total(
    values: npt.ArrayLike, sizes: Sequence[int], ms: Sequence[float], *, slope: float = 0.0, sampler_ms: float = 0.0
) -> int:
    """Tokens of a decode step, in ``[N, N * (K + 1)]``, with the most expected tokens per time.

    ``values``: float32 ``[N, K]`` in 0 .. 1, rows not increasing (`cumulative`); each counts in whole `UNITS`, rounded
    half up. ``sizes``, ``ms``: graph sizes,
    ascending, and the time of a forward in each; ``slope`` ms for each token of the graph; ``sampler_ms`` beside it.
    Raises ArgumentError naming the argument.
    """
    listed, n, k = _values(values)
    size = 6 * n * k + 4 * (UNITS + 1)
    scratch = ffi.new("uint32_t[]", -(-size // 4))
    total = ffi.new("int32_t *")
    c_sizes, c_ms = curve_to_c(sizes, ms)
    call(lib.di_verify_budget, c_sizes, c_ms, len(c_sizes), slope, sampler_ms, listed, n, k, scratch, size, total)
    return int(total[0])


def verify_lengths(values: npt.ArrayLike, total: int) -> npt.NDArray[np.int32]:
    """Rows of each request, int32 ``[N]``: 1 and one for each of its values among the ``total - N`` largest.

    Ties go to the smaller request row, then to the earlier draft. Raises ArgumentError naming the argument.
    """
    listed, n, k = _values(values)
    lengths = np.empty(n, np.int32)
    call(lib.di_verify_distribute, listed, n, k, total, ffi.from_buffer("int32_t[]", lengths))
    return lengths


def curve_to_c(sizes: Sequence[int], ms: Sequence[float]) -> tuple[Any, Any]:
    """(``int32_t[]``, ``double[]``) of equal length."""
    try:
        c_sizes, c_ms = ffi.new("int32_t[]", [index(s) for s in sizes]), ffi.new("double[]", [float(x) for x in ms])
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(f"a curve does not fit: {error}", field="sizes") from error
    if len(c_sizes) != len(c_ms):
        raise ArgumentError(f"{len(c_ms)} times for {len(c_sizes)} graph sizes", field="ms")
    return c_sizes, c_ms


def lengths_to_c(seqlens_q: npt.ArrayLike) -> Any:
    """``int32_t[N]`` over the lengths of a step. Raises ArgumentError for anything else."""
    try:
        lengths = np.ascontiguousarray(seqlens_q)
    except ValueError as error:  # rows of several lengths
        raise ArgumentError(f"int32 [N] is needed: {error}", field="seqlens_q") from error
    if lengths.dtype != np.int32 or lengths.ndim != 1:
        raise ArgumentError(f"int32 [N] is needed, got {lengths.dtype} {list(lengths.shape)}", field="seqlens_q")
    return ffi.from_buffer("int32_t[]", lengths)


def _values(values: npt.ArrayLike) -> tuple[Any, int, int]:
    try:
        listed = np.ascontiguousarray(values, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"an array [N, K] is needed: {error}", field="values") from error
    if listed.ndim != 2 or not listed.size:
        raise ArgumentError(f"an array [N, K] is needed, got {list(listed.shape)}", field="values")
    n, k = listed.shape
    return ffi.from_buffer("float[]", listed), n, k
