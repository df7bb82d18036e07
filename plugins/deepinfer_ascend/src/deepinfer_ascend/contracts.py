"""The error of an argument that a kernel of the device would not take, and the checks that ops share.

All look at dtypes, shapes and strides, none at values. The equivalents of ``emulation/`` raise the same, so that a
wrong layout fails on the processor as it would on the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.errors import ShapeContractError


def misfit(call: str, argument: str, expected: object, got: object) -> ShapeContractError:
    """An E_SHAPE naming the call, the argument, what was expected and what came. The caller raises it."""
    return ShapeContractError(
        f"{call}: argument '{argument}' must be {expected}, got {got}",
        reason="the caller and the kernel disagree on a shape, dtype, stride or layout",
        remedy="this is a fault of backend ascend, please report it",
        details={"op": call, "argument": argument, "expected": str(expected), "got": str(got)},
    )


def check(call: str, argument: str, x: object, dtype: torch.dtype, *shape: int | None) -> Tensor:
    """``x``, which is a tensor of ``dtype`` and ``shape`` (None: any) whose last dimension is contiguous."""
    if not isinstance(x, Tensor):
        raise misfit(call, argument, "a tensor in ND", type(x).__name__)
    if x.dtype != dtype:
        raise misfit(call, argument, dtype, x.dtype)
    if len(shape) != x.dim() or any(n is not None and n != m for n, m in zip(shape, x.shape, strict=True)):
        raise misfit(call, argument, f"[{', '.join('any' if n is None else str(n) for n in shape)}]", list(x.shape))
    if x.dim() and x.shape[-1] > 1 and x.stride(-1) != 1:
        raise misfit(call, argument, "contiguous in its last dimension", f"strides {x.stride()}")
    return x
