"""What the ops of this package share: which arguments a core takes as they are, and how a kernel is executed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from deepinfer_ascend.chip import VECTOR_CORES
from deepinfer_ascend.jit import hosted
from deepinfer_ascend.jit.lowering import lowered

Op = Callable[..., Any]
WHOLE = 16
"""bf16 values that a copy to a core's memory begins at a multiple of."""


@frozen
class Served:
    """:ivar op: what takes the arguments that the kernel does not. :ivar table: all ops, with kernels in front."""

    op: Op
    table: Mapping[str, Op]


def run(name: str, work: int, sizes: Mapping[str, Any], *, spare: Collection[str] = (), **arguments: Any) -> None:
    """Execute kernel ``name``, which deals ``work`` rows out to the vector cores; nothing where there is none.

    :param spare: arguments that it has no use for in some sizes, and then has not.
    """
    if work > 0:
        kernel = lowered(name, **sizes)
        has = {argument.name for argument in kernel.arguments}
        given = {key: value for key, value in arguments.items() if key in has or key not in spare}
        hosted.run(kernel, min(work, VECTOR_CORES), **given)


def is_rows(x: Any) -> bool:
    """bf16 rows that a core takes as they are."""
    is_whole = isinstance(x, Tensor) and x.dtype == torch.bfloat16 and x.dim() >= 2 and x.shape[-1] % WHOLE == 0
    return is_whole and x.shape[-1] > 0 and x.stride(-1) == 1


def flat(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]).contiguous()


def is_int32(*tensors: Tensor, dim: int = 1) -> bool:
    """Whether all are int32 of ``dim`` dimensions."""
    return all(isinstance(x, Tensor) and x.dtype == torch.int32 and x.dim() == dim for x in tensors)
