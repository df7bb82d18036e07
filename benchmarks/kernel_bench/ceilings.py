"""What the card reaches in this run: a copy and a bf16 product, against which everything else is held."""

from __future__ import annotations

import torch
from attrs import frozen

from kernel_bench.harness import measure

COPY_BYTES = 2 << 30
SQUARE = 8192


@frozen
class Ceilings:
    """Bytes a second, read plus written, of a device copy; FLOP a second of a bf16 product of random values."""

    copy: float
    bf16: float

    def floor_us(self, num_bytes: float, flop: float = 0.0) -> float:
        """Microseconds that no kernel moving ``num_bytes`` and doing ``flop`` on bf16 products can beat by much."""
        return max(num_bytes / self.copy, flop / self.bf16) * 1e6


def measure_ceilings() -> Ceilings:
    """About a second on the device."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    copy = measure([lambda: target.copy_(source)])
    a = torch.randn(SQUARE, SQUARE, device="cuda").bfloat16()
    b = torch.randn(SQUARE, SQUARE, device="cuda").bfloat16()
    out = torch.empty_like(a)
    product = measure([lambda: torch.matmul(a, b, out=out)])
    return Ceilings(copy=2 * COPY_BYTES / (copy.us * 1e-6), bf16=2 * SQUARE**3 / (product.us * 1e-6))
