"""Hyper-connections of four streams of 5120, and the same steps by tile_kernels or torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from deepinfer_cuda.ops import mhc
from kernel_bench import peers
from kernel_bench.cases import Case
from kernel_bench.harness import Call

ROWS = (1, 8, 64, 256, 4096)
STREAMS, WIDTH = 4, 5120
MIX = STREAMS * (STREAMS + 2)
SHARE = 0.80


def cases(rows: Sequence[int] | None) -> list[Case]:
    return [make(m) for m in rows or ROWS for make in (_pre, _post, _head)]


def _streams(m: int, i: int) -> tuple[Tensor, Tensor, torch.Generator]:
    g = torch.Generator(device="cuda").manual_seed(2000 + i)
    stream = torch.randn(m, STREAMS, WIDTH, generator=g, device="cuda").to(torch.bfloat16)
    return stream, torch.rand(m, STREAMS, generator=g, device="cuda"), g


def _pre(m: int) -> Case:
    def ours(i: int) -> Call:
        stream, a, g = _streams(m, i)
        fn = torch.randn(MIX, STREAMS * WIDTH, generator=g, device="cuda") * (STREAMS * WIDTH) ** -0.5
        params = mhc.prepare(fn, torch.ones(3, device="cuda"), torch.zeros(MIX, device="cuda"))
        return lambda: mhc.pre(stream, a, params)

    def product(i: int) -> Call:
        """The logits alone, in bf16: no squares, no coefficients, no collapse."""
        stream, _, g = _streams(m, i)
        fn = torch.randn(STREAMS * WIDTH, MIX, generator=g, device="cuda").to(torch.bfloat16)
        return lambda: torch.mm(stream.view(m, -1), fn)

    moved = 2.0 * m * WIDTH * (STREAMS + 1) + 4.0 * MIX * STREAMS * WIDTH + 4.0 * m * (MIX + STREAMS)
    flop = 2.0 * m * STREAMS * WIDTH * MIX
    return Case("mhc.pre", "4 x 5120", m, moved, ours, flop, {"cuBLAS logits only": product}, SHARE)


def _post(m: int) -> Case:
    def inputs(i: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        stream, post, g = _streams(m, i)
        y = torch.randn(m, WIDTH, generator=g, device="cuda").to(torch.bfloat16)
        return y, stream, post, torch.rand(m, STREAMS, STREAMS, generator=g, device="cuda")

    def ours(i: int) -> Call:
        y, stream, post, comb = inputs(i)
        return lambda: mhc.post(y, stream, post, comb)

    moved = 2.0 * m * WIDTH * (2 * STREAMS + 1) + 4.0 * m * STREAMS * (STREAMS + 1)
    return Case("mhc.post", "4 x 5120", m, moved, ours, 0.0, peers.peers(peers.post(m, STREAMS, WIDTH)), SHARE)


def _head(m: int) -> Case:
    def ours(i: int) -> Call:
        stream, a, _ = _streams(m, i)
        return lambda: mhc.head(stream, a)

    others = peers.peers(peers.collapse(m, STREAMS, WIDTH))
    return Case("mhc.head", "4 x 5120", m, 2.0 * m * WIDTH * (STREAMS + 1) + 16.0 * m, ours, 0.0, others, SHARE)
