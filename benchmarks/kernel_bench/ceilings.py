"""What the card reaches in this run: a copy and a bf16 product, against which everything else is held."""

from __future__ import annotations

import time

import torch
from attrs import frozen

from kernel_bench.harness import Call, measure

COPY_BYTES = 4 << 30
SQUARE = 8192
WARM_SECONDS = 0.7
"""An idle card runs at a fraction of its clock."""


@frozen
class Ceilings:
    """Bytes a second, read plus written, of a device copy; FLOP a second of a bf16 product of random values."""

    copy: float
    bf16: float

    def floor_us(self, num_bytes: float, flop: float = 0.0) -> float:
        """Microseconds that no kernel moving ``num_bytes`` and doing ``flop`` on bf16 products can beat by much."""
        return max(num_bytes / self.copy, flop / self.bf16) * 1e6


def measure_ceilings() -> Ceilings:
    """About two seconds on the device: the better of two ways to copy, and a product through cuBLAS."""
    a = torch.randn(SQUARE, SQUARE, device="cuda").bfloat16()
    b = torch.randn(SQUARE, SQUARE, device="cuda").bfloat16()
    out = torch.empty_like(a)
    _warm(lambda: torch.matmul(a, b, out=out))
    source = torch.empty(COPY_BYTES // 4, dtype=torch.int32, device="cuda").random_()
    target = torch.empty_like(source)
    copies = (lambda: target.copy_(source), lambda: torch.bitwise_not(source, out=target))
    copy = min(measure([call]).us for call in copies)
    product = measure([lambda: torch.matmul(a, b, out=out)])
    return Ceilings(copy=2 * COPY_BYTES / (copy * 1e-6), bf16=2 * SQUARE**3 / (product.us * 1e-6))


def _warm(call: Call) -> None:
    until = time.perf_counter() + WARM_SECONDS
    while time.perf_counter() < until:
        call()
        torch.cuda.synchronize()
