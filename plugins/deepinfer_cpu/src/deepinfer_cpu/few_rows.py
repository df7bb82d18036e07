"""Quantisation of few values in NumPy: the same steps and bits as in torch, at half the cost a call.

A decode step of one sequence quantises a few hundred values some forty times, a dozen tiny steps each; every step is
exact or correctly rounded in both libraries, so which of them runs cannot be seen in a result.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from deepinfer_cpu import rounding

F32 = npt.NDArray[np.float32]

FEW_VALUES = 1024
"""Up to this many values NumPy is faster; above, torch."""

_EXPONENT, _MANTISSA = np.array(0x7F800000, dtype=np.int32), np.array(0x007FFFFF, dtype=np.int32)
# By element format: floor of amax, largest value; smallest normal, and the factor of the rounding step.
_RANGE = {
    "e4m3": (np.array(rounding.AMAX_FLOOR_E4M3, dtype=np.float32), np.array(rounding.E4M3_MAX, dtype=np.float32)),
    "e2m1": (np.array(rounding.AMAX_FLOOR_E2M1, dtype=np.float32), np.array(rounding.E2M1_MAX, dtype=np.float32)),
}
_STEP = {
    "e4m3": (np.array(2.0**-6, dtype=np.float32), np.array(1.5 * 2.0**20, dtype=np.float32)),
    "e2m1": (np.array(1.0, dtype=np.float32), np.array(1.5 * 2.0**22, dtype=np.float32)),
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


def round_scaled(scaled: F32, scale: F32, fmt: str) -> F32:
    """``scaled`` rounded as ``rounding.round_e4m3`` or ``round_e2m1`` do, times ``scale``."""
    smallest, factor = _STEP[fmt]
    step = (scaled.view(np.int32) & _EXPONENT).view(np.float32)
    np.maximum(step, smallest, out=step)
    with np.errstate(invalid="ignore", over="ignore"):
        step *= factor
        rounded: F32 = scaled + step
        rounded -= step
        rounded *= scale
    return rounded
