"""Which architecture kernels are compiled for in this process."""

from __future__ import annotations

import functools

from deepinfer_cuda.arches import arch_of, compiler_arch


@functools.cache
def current_arch() -> str:
    """``sm_90a``: that of torch's current device when it was first asked. A process computes on one device."""
    import torch

    return compiler_arch(arch_of(torch.cuda.get_device_capability()))
