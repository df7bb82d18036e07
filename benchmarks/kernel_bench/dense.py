"""Dense products of the released model: FP8 weights of 32 x 32 blocks, bf16 weights, and the library's products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from deepinfer_cuda.ops.gemm import dense, einsum_heads
from deepinfer_cuda.ops.quant import prepare_weight
from kernel_bench.cases import Case
from kernel_bench.harness import Call

ROWS = (1, 8, 16, 64, 256, 4096)
FP8 = {
    "q_a+kv": (1792, 5120),
    "q_b": (32768, 1280),
    "q_b+index": (36864, 1280),
    "o_b": (5120, 8192),
    "shared w1+w3": (4608, 5120),
    "shared w2": (5120, 2304),
    "engram wkv": (25600, 6144),
}
"""Outputs and inputs."""
BF16 = {"gate": (384, 5120, torch.float32), "compressor": (1024, 5120, torch.float32)}
LOGITS = (129280, 5120)
GROUPS, GROUP_OUTPUTS, GROUP_INPUTS = 8, 1024, 4096
SMALL, LARGE = 0.80, 0.85
FEW = 64


def cases(rows: Sequence[int] | None) -> list[Case]:
    found = []
    for m in rows or ROWS:
        found += [_fp8(name, m, *shape) for name, shape in FP8.items()]
        found += [_plain(name, m, *shape) for name, shape in BF16.items()]
        if m <= 256:
            found.append(_plain("logits", m, *LOGITS, torch.float32))
        found.append(_heads(m))
    return found


def _generator(i: int) -> torch.Generator:
    return torch.Generator(device="cuda").manual_seed(1000 + i)


def _codes(g: torch.Generator, outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
    codes = torch.randint(0, 127, (outputs, inputs), generator=g, device="cuda", dtype=torch.uint8)
    signs = torch.randint(0, 2, (outputs, inputs), generator=g, device="cuda", dtype=torch.uint8) << 7
    scale = torch.randint(108, 119, (outputs // 32, inputs // 32), generator=g, device="cuda", dtype=torch.uint8)
    return (codes | signs).view(torch.float8_e4m3fn), scale


def _rows(g: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=g, device="cuda").to(torch.bfloat16)


def _fp8(name: str, m: int, outputs: int, inputs: int) -> Case:
    def ours(i: int) -> Call:
        g = _generator(i)
        w = prepare_weight(name, *_codes(g, outputs, inputs))
        x = _rows(g, m, inputs)
        return lambda: dense(x, w)

    def cublas(i: int) -> Call:
        g = _generator(i)
        w, x = _rows(g, outputs, inputs).t(), _rows(g, m, inputs)
        return lambda: torch.mm(x, w)

    def scaled(i: int) -> Call:
        """One scale a row: not this checkpoint's scales; speed only."""
        g = _generator(i)
        w = _codes(g, outputs, inputs)[0].t()
        x = _rows(g, m, inputs).clamp(-448, 448).to(torch.float8_e4m3fn)
        a, b = torch.ones(m, 1, device="cuda"), torch.ones(1, outputs, device="cuda")
        return lambda: torch._scaled_mm(x, w, a, b, out_dtype=torch.bfloat16)

    moved = outputs * inputs * (1 + 1 / 1024) + 2.0 * m * (inputs + outputs)
    return Case(
        "gemm.dense", f"{name} fp8 {outputs}x{inputs}", m, moved, ours, 2.0 * m * outputs * inputs,
        {"cuBLAS bf16": cublas, "_scaled_mm": scaled}, SMALL if m <= FEW else LARGE if m >= 1536 else None,
    )  # fmt: skip


def _plain(name: str, m: int, outputs: int, inputs: int, dtype: torch.dtype) -> Case:
    def ours(i: int) -> Call:
        g = _generator(i)
        w, x = prepare_weight(name, _rows(g, outputs, inputs)), _rows(g, m, inputs)
        return lambda: dense(x, w, out_dtype=dtype)

    def cublas(i: int) -> Call:
        g = _generator(i)
        w, x = _rows(g, outputs, inputs).t(), _rows(g, m, inputs)
        return lambda: torch.mm(x, w, out_dtype=dtype)

    moved = 2.0 * outputs * inputs + 2.0 * m * inputs + 4.0 * m * outputs
    target = SMALL if m <= FEW else LARGE if m >= 1536 else None
    flop, variant = 2.0 * m * outputs * inputs, f"{name} bf16 {outputs}x{inputs}"
    return Case("gemm.dense", variant, m, moved, ours, flop, {"cuBLAS bf16": cublas}, target)


def _heads(m: int) -> Case:
    outputs = GROUPS * GROUP_OUTPUTS

    def ours(i: int) -> Call:
        g = _generator(i)
        w: Any = prepare_weight("wo_a", *_codes(g, outputs, GROUP_INPUTS), use=f"heads:{GROUPS}")
        x = _rows(g, m, GROUPS, GROUP_INPUTS)
        return lambda: einsum_heads(x, w)

    def cublas(i: int) -> Call:
        g = _generator(i)
        w, x = _rows(g, GROUPS, GROUP_INPUTS, GROUP_OUTPUTS), _rows(g, m, GROUPS, GROUP_INPUTS).transpose(0, 1)
        return lambda: torch.bmm(x, w)

    moved = outputs * GROUP_INPUTS * (1 + 1 / 1024) + 2.0 * m * (GROUPS * GROUP_INPUTS + outputs)
    return Case(
        "gemm.einsum_heads", "V-up fp8 8x1024x4096", m, moved, ours, 2.0 * m * outputs * GROUP_INPUTS,
        {"cuBLAS bf16": cublas}, SMALL if m <= FEW else LARGE if m >= 1536 else None,
    )  # fmt: skip
