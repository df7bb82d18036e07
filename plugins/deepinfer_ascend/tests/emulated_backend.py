"""The emulated backend, the one of ``cpu``, and operands of the sizes that vendor kernels take."""

import torch

from deepinfer_ascend.backend import create
from deepinfer_core.config import EngineConfig
from deepinfer_core.interfaces import cpu_backend

CONFIG = EngineConfig(backend="ascend", emulate=True)
T, K, N = 5, 256, 192


def emulated():
    return create(None, CONFIG)


def plain():
    return cpu_backend()


def rows(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).bfloat16()


def fp8_weight(n=N, k=K, seed=2):
    """E4M3 ``[N, K]`` and its E8M0 grid of 32 by 32 blocks, as a checkpoint has them."""
    values, generator = rows(n, k, seed=seed).float(), torch.Generator().manual_seed(seed)
    scales = torch.randint(120, 125, (-(-n // 32), -(-k // 32)), generator=generator, dtype=torch.uint8)
    return values.to(torch.float8_e4m3fn), scales


def fp4_weight(n=N, k=K, seed=3):
    """Packed E2M1 ``[N, K / 2]`` and its E8M0 scales ``[N, K / 32]``."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (n, k // 2), generator=generator, dtype=torch.uint8)
    return codes, torch.randint(118, 123, (n, k // 32), generator=generator, dtype=torch.uint8)
