"""Alternatives out of ``tile_kernels`` (pip install tile-kernels, Python 3.12), where it is installed.

Each function makes the alternative of a case, for :attr:`Case.others`; :func:`peers` leaves them out where the package
is missing. Where ours writes E4M3 values in bf16, which products on SM90 read, the package writes codes: fewer bytes.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch import Tensor

from kernel_bench.cases import Maker
from kernel_bench.harness import Call

NAME = "tile_kernels"
HERE = importlib.util.find_spec(NAME) is not None


def peers(make: Maker) -> dict[str, Maker]:
    """``make`` by its name, or nothing."""
    return {NAME: make} if HERE else {}


def _bf16(i: int, *shape: int) -> Tensor:
    generator = torch.Generator(device="cuda").manual_seed(4000 + i)
    return torch.randn(*shape, generator=generator, device="cuda").bfloat16()


def norm(rows: int, width: int, eps: float) -> Maker:
    def make(i: int) -> Call:
        from tile_kernels.quant import norm_forward

        x, w = _bf16(i, rows, width), _bf16(i, width)
        return lambda: norm_forward(x, w, eps)

    return make


def norm_cast(rows: int, width: int, eps: float, *, with_bf16: bool) -> Maker:
    """Codes and scales, and the norm in bf16 as well."""

    def make(i: int) -> Call:
        from tile_kernels.quant import norm_forward_and_per_token_cast

        x, w = _bf16(i, rows, width), _bf16(i, width)
        return lambda: norm_forward_and_per_token_cast(x, w, eps, "e4m3", 32, round_sf=True, with_out_bf16=with_bf16)

    return make


def cast(rows: int, width: int, fmt: str) -> Maker:
    def make(i: int) -> Call:
        from tile_kernels.quant import per_token_cast

        x = _bf16(i, rows, width)
        return lambda: per_token_cast(x, fmt, 32, round_sf=True)

    return make


def cast_back(rows: int, width: int) -> Maker:
    def make(i: int) -> Call:
        from tile_kernels.quant import per_token_cast, per_token_cast_back

        codes = per_token_cast(_bf16(i, rows, width), "e4m3", 32, round_sf=True)
        return lambda: per_token_cast_back(codes, "bf16", 32)

    return make


def swiglu(rows: int, inner: int, clamp: float) -> Maker:
    def make(i: int) -> Call:
        from tile_kernels.quant import swiglu_forward_and_per_token_cast

        x = _bf16(i, rows, 2 * inner)
        return lambda: swiglu_forward_and_per_token_cast(x, "e4m3", 32, round_sf=True, clamp_value=clamp)

    return make


def gate(tokens: int, experts: int, hidden: int, choices: int) -> Maker:
    """The library's product in fp32 and the package's choice."""

    def make(i: int) -> Call:
        from tile_kernels.moe import moe_topk_gate_forward

        x, w, bias = _bf16(i, tokens, hidden), _bf16(i, experts, hidden) * 0.02, torch.rand(experts, device="cuda")

        def call() -> Any:
            logits = torch.mm(x, w.t(), out_dtype=torch.float32)
            return moe_topk_gate_forward(logits, choices, False, 0, 1.5, 0, bias=bias)

        return call

    return make


def post(rows: int, streams: int, width: int) -> Maker:
    def make(i: int) -> Call:
        from tile_kernels.mhc import mhc_post_fwd

        y, stream = _bf16(i, 1, rows, width), _bf16(i, 1, rows, streams, width)
        mix = torch.rand(1, rows, streams, 1, device="cuda")
        both = torch.rand(1, rows, streams, streams, device="cuda")
        return lambda: mhc_post_fwd(y, stream, mix, both)

    return make


def collapse(rows: int, streams: int, width: int) -> Maker:
    def make(i: int) -> Call:
        from tile_kernels.mhc import mhc_pre_apply_mix_fwd

        stream, mix = _bf16(i, rows, streams, width), torch.rand(rows, streams, device="cuda")

        def call() -> Tensor:
            y = torch.empty(rows, width, dtype=torch.bfloat16, device="cuda")
            mhc_pre_apply_mix_fwd(stream, mix, y)
            return y

        return call

    return make


def engram_gate(rows: int, streams: int, width: int) -> Maker:
    def make(i: int) -> Call:
        from tile_kernels.engram import engram_gate_fwd

        x, kv = _bf16(i, rows, streams, width), _bf16(i, rows, streams + 1, width)
        w = torch.rand(streams, width, device="cuda")
        return lambda: engram_gate_fwd(x, kv, w, 1e-6, 1e-6, save_for_backward=False)

    return make
