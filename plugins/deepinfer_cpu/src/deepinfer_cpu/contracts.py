"""The one error every op raises for an argument that breaks its contract, and the checks that several ops share
(``spec/kernels.md`` 3.1). All look at dtypes, shapes and strides, none at values."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.errors import ShapeContractError

FLOATS = (torch.bfloat16, torch.float32)
INTEGERS = (torch.int32, torch.int64)


def shape_error(op: str, argument: str, expected: object, got: object) -> ShapeContractError:
    """An E_SHAPE naming op, argument, what was expected and what came. The caller raises it."""
    return ShapeContractError(
        f"{op}: argument '{argument}' must be {expected}, got {got}",
        reason="the caller and the op disagree on a shape, dtype or option",
        remedy="this is a fault of the model plugin or of the engine, please report it",
        details={"op": op, "argument": argument, "expected": str(expected), "got": str(got)},
    )


def check_floats(op: str, argument: str, x: Tensor, *dims: int) -> None:
    """bf16 or fp32 of ``dims`` dimensions (any if none is given), contiguous in the last one."""
    if x.dtype not in FLOATS:
        raise shape_error(op, argument, "bf16 or fp32", x.dtype)
    if not x.dim() or (dims and x.dim() not in dims):
        raise shape_error(op, argument, f"of {' or '.join(map(str, dims or ('1 or more',)))} dimensions", list(x.shape))
    if x.stride(-1) != 1 and x.shape[-1] > 1:
        raise shape_error(op, argument, "contiguous in its last dimension", f"strides {x.stride()}")


def check_like(op: str, argument: str, x: Tensor, shape: tuple[int, ...] | torch.Size, *dtypes: torch.dtype) -> None:
    """Exactly ``shape``, where torch would broadcast, and one of ``dtypes``, where it would convert."""
    if x.shape != shape:
        raise shape_error(op, argument, list(shape), list(x.shape))
    if dtypes and x.dtype not in dtypes:
        raise shape_error(op, argument, " or ".join(map(str, dtypes)), x.dtype)
