"""Quantisation of few values in NumPy: the same steps and bits as in torch, at half the cost a call.

A decode step of one sequence quantises a few hundred values some forty times, a dozen tiny steps each; every step is
exact or correctly rounded in both libraries, so which of them runs cannot be seen in a result.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from deepinfer_cpu import rounding

F32 = npt.NDArray[np.float32]

FEW_VALUES = 8192
"""Up to this many values NumPy is faster; above, torch."""

_EXPONENT, _MANTISSA = np.array(0x7F800000, dtype=np.int32), np.array(0x007FFFFF, dtype=np.int32)
# By element format: floor of amax, largest value; smallest normal, and the factor of the rounding step.
_RANGE = {
    "e4m3": (np.array(rounding.AMAX_FLOOR_E4M3, dtype=np.float32), np.array(rounding.E4M3_MAX, dtype=np.float32)),
    "e2m1": (np.array(rounding.AMAX_FLOOR_E2M1, dtype=np.float32), np.array(rounding.E2M1_MAX, dtype=np.float32)),
}
# By element format: what to add so that the exponent of amax becomes that of (scale * 2^k), k for that format; exponent
# bits from there to the smallest normal value's step; the factor that makes a power of two a rounding step.
_LARGE = np.array(2.0**100, dtype=np.float32).view(np.int32)
_SIGNLESS = np.array(0x7FFFFFFF, dtype=np.int32)
_GRID = {
    # 448 = 1.75 * 2^8: above it the next power of two. Smallest normal 2^-6, so 2^-14 from scale * 2^8.
    "e4m3": (
        np.array(0x1FFFFF, dtype=np.int32),
        np.array(14 << 23, dtype=np.int32),
        np.array(1.5 * 2.0**20, dtype=np.float32),
    ),
    # 6 = 1.5 * 2^2. Smallest normal 1, so 2^-2 from scale * 2^2.
    "e2m1": (
        np.array(0x3FFFFF, dtype=np.int32),
        np.array(2 << 23, dtype=np.int32),
        np.array(1.5 * 2.0**22, dtype=np.float32),
    ),
}


def scale_groups(groups: F32, fmt: str) -> tuple[F32, F32]:
    """``[..., group]`` over power-of-two scales, and the scales ``[..., 1]``; see ``ops.quant.scale_groups``."""
    floor, top = _RANGE[fmt]
    scale: F32 = np.maximum.reduce(np.abs(groups), -1, keepdims=True)
    np.maximum(scale, floor, out=scale)
    np.divide(scale, top, out=scale)
    bits = scale.view(np.int32)
    bits += _MANTISSA
    bits &= _EXPONENT
    with np.errstate(invalid="ignore", divide="ignore"):  # NaN in, NaN out, and nothing to say about it here
        return groups / scale, scale


def round_groups(x: F32, fmt: str, group: int) -> F32 | None:
    """``x`` ``[..., K]`` quantised in groups with power-of-two scales and dequantised, without making either.

    Rounding on the grid of a scale is rounding to a step that follows the exponent of each value, and not below that of
    the scale; amax becomes the scale by its bits. The same bits as ``rounded(x / scale) * scale``. None when a value
    is not finite, or so large that a step would overflow.
    """
    above, down, factor = _GRID[fmt]
    rows = x.reshape(-1, group)
    bits = rows.view(np.int32)
    least = np.maximum.reduce(bits & _SIGNLESS, 1, keepdims=True)
    np.maximum(least, _RANGE[fmt][0].view(np.int32), out=least)
    if least.max(initial=0) > _LARGE:
        return None
    least += above
    least &= _EXPONENT
    least -= down
    step = bits & _EXPONENT
    np.maximum(step, least, out=step)
    steps: F32 = step.view(np.float32)
    steps *= factor
    rounded: F32 = rows + steps
    rounded -= steps
    return rounded.reshape(x.shape)
