"""tile-kernels: casts of activations and the choice of experts, TileLang kernels like ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from deepinfer_cuda.tensors import QuantTensor

GROUPS = (16, 32, 64, 128)


def fits_cast(x: Tensor, *, fmt: str = "e4m3", group: int = 32, sf: str = "ue8m0", out: Any = None, **_: Any) -> bool:
    """bf16 rows of a multiple of 64 values; E4M3 scales belong to FP4 in groups of 16."""
    return (
        x.dim() == 2
        and x.dtype == torch.bfloat16
        and x.stride(1) == 1
        and x.shape[1] % 64 == 0
        and group in GROUPS
        and (sf != "e4m3" or (fmt == "e2m1" and group == 16))
        and out is None
    )


def call_cast(
    cast: Callable[..., Any],
    x: Tensor,
    *,
    fmt: str = "e4m3",
    group: int = 32,
    sf: str = "ue8m0",
    layout: str = "gemm",
    out: Any = None,
) -> QuantTensor:
    """``quant.cast_per_token`` through ``per_token_cast``; a scale of two to a power comes as fp32 and is kept as the
    byte of its exponent."""
    data, scale = cast(x, fmt, group, round_sf=sf == "ue8m0", use_e4m3_sf=sf == "e4m3")
    if sf == "ue8m0":
        scale = (scale.contiguous().view(torch.int32) >> 23).to(torch.uint8)
    elif sf == "e4m3":
        scale = scale.view(torch.uint8)
    return QuantTensor.of_codes(data.view(torch.uint8), scale, fmt=fmt, group=group, sf_kind=sf)


def fits_gate(
    x: Tensor,
    w: Any,
    bias: Tensor,
    *,
    temperature: float = 1.0,
    placement: Any = None,
    force_random: Any = None,
    **_: Any,
) -> bool:
    """The plain choice of one rank."""
    return x.dim() == 2 and x.dtype == torch.bfloat16 and temperature == 1.0 and placement is None and not force_random


def call_gate(
    choose: Callable[..., Any],
    x: Tensor,
    w: Any,
    bias: Tensor,
    *,
    k: int,
    scale: float,
    temperature: float = 1.0,
    bias_image: Tensor | None = None,
    image_rows: Tensor | None = None,
    mask: Tensor | None = None,
    force_random: Any = None,
    placement: Any = None,
) -> tuple[Tensor, Tensor]:
    """``moe.gate``: the scores by a product in fp32, the choice through ``moe_topk_gate_forward``."""
    images = bias_image is not None and image_rows is not None
    return choose(  # type: ignore[no-any-return]
        x.float() @ w.matrix,
        k,
        False,
        0,
        scale,
        0,
        mask=mask,
        bias=bias,
        image_bias=bias_image if images else None,
        image_token_mask=image_rows if images else None,
    )
