"""What kernels ask of the tensors that an op is given; an op whose tensors do not fit is done by the plain one."""

from __future__ import annotations

import torch
from torch import Tensor


def int32(x: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether ``x`` is an int32 tensor of ``shape`` on a device, without gaps."""
    return x.dtype == torch.int32 and tuple(x.shape) == shape and x.is_contiguous() and x.is_cuda
