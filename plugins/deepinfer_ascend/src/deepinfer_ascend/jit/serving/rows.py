"""Norms, rotations, casts and SwiGLU of rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_ascend.jit.serving.parts import WHOLE, Served, flat, is_rows, run
from deepinfer_ascend.ops.quant import can_cast
from deepinfer_ascend.tensors import QuantTensor

THREADS = 128
"""Of a row whose values are added up."""
CASTS = (("e4m3", 32, "ue8m0"), ("e2m1", 32, "ue8m0"), ("e2m1", 16, "e4m3"))
"""Element, group and scale that there is a kernel for."""


def _takes_norm(x: Tensor, w: Tensor) -> bool:
    """Whether threads share a row evenly, and the weight is one."""
    return (
        w.shape == x.shape[-1:]
        and w.dtype in (torch.bfloat16, torch.float32)
        and (x.shape[-1] % THREADS == 0 or x.shape[-1] == THREADS // 2)
    )


def _normalised(x: Tensor, w: Tensor, eps: float) -> Tensor:
    held = flat(x)
    y = torch.empty_like(held)
    weight = w.float().contiguous()
    run("rms_rows", len(held), {"width": x.shape[-1]}, x=held, w=weight, y=y, eps=eps, rows=len(held))
    return y.view(x.shape)


def rms(
    served: Served,
    x: Tensor,
    w: Tensor,
    *,
    eps: float,
    residual: Tensor | None = None,
    cast: tuple[str, int, str] | None = None,
    want_bf16: bool = True,
    out_scale: float = 1.0,
    out: Tensor | None = None,
) -> Any:
    """``norm.rms``."""
    fits = is_rows(x) and _takes_norm(x, w) and residual is None and out is None and out_scale == 1.0
    if not fits or not (cast is None or can_cast(x.shape[-1], cast)):
        given = {"residual": residual, "cast": cast, "want_bf16": want_bf16, "out_scale": out_scale, "out": out}
        return served.op(x, w, eps=eps, **given)
    y = _normalised(x, w, eps)
    q = None if cast is None else served.table["quant.cast_per_token"](y, fmt=cast[0], group=cast[1], sf=cast[2])
    return (y if want_bf16 else None), q


def cast_per_token(
    served: Served, x: Tensor, *, fmt: str = "e4m3", group: int = 32, sf: str = "ue8m0",
    layout: str = "gemm", out: Any = None,
) -> Any:  # fmt: skip
    """``quant.cast_per_token`` in the forms of activations and caches."""
    if not is_rows(x) or (fmt, group, sf) not in CASTS or x.shape[-1] % group or out is not None:
        return served.op(x, fmt=fmt, group=group, sf=sf, layout=layout, out=out)
    held, width = flat(x), x.shape[-1]
    codes = torch.empty(len(held), width if fmt == "e4m3" else width // 2, dtype=torch.uint8)
    scales = torch.empty(len(held), width // group, dtype=torch.uint8)
    sizes = {"width": width} if (fmt, group, sf) == CASTS[0] else {"width": width, "fmt": fmt, "group": group, "sf": sf}
    run("cast_rows", len(held), sizes, x=held, codes=codes, scales=scales, rows=len(held))
    front = x.shape[:-1]
    return QuantTensor.of_codes(
        codes.view(*front, codes.shape[1]), scales.view(*front, scales.shape[1]), fmt=fmt, group=group, sf_kind=sf
    )


def rotary(served: Served, x: Tensor, rope: tuple[Any, ...], *, out: Tensor | None = None) -> Tensor:
    """``transform.rotary`` by rows that were made for a step."""
    first = getattr(rope[0], "first", None)
    if first is None or not is_rows(x) or first.shape[0] != x.shape[0] or first.shape[1] * 2 > x.shape[-1]:
        return served.op(x, rope, out=out)
    held, heads = flat(x), x.shape[1] if x.dim() == 3 else 1
    angles = torch.cat([first[..., 0], first[..., 1]], dim=-1).repeat_interleave(heads, 0)
    y = torch.empty_like(held)
    sizes = {"width": x.shape[-1], "turned": angles.shape[1]}
    run("rotary_rows", len(held), sizes, x=held, angles=angles, y=y, flip=-1.0 if rope[1] else 1.0, rows=len(held))
    return y.view(x.shape) if out is None else out.copy_(y.view(x.shape))


def fused(
    served: Served,
    x: Tensor,
    *,
    norm: Any = None,
    rope: Any = None,
    hadamard: int | None = None,
    cast: Any = None,
    store: Any = None,
    copy_stage: str | None = None,
    out: Tensor | None = None,
) -> Any:
    """``transform.fused``: norm, rotation, cast and store, each by its kernel."""
    stage = copy_stage
    known = rope is None or getattr(rope[0], "first", None) is not None
    known = known and (norm is None or (is_rows(x) and _takes_norm(x, norm[0])))
    copied = stage in (None, "norm", "transform") or (stage == "cast_back" and store is not None)
    if not is_rows(x) or not known or not copied or out is not None or hadamard is not None or (cast and store):
        given = {"hadamard": hadamard, "cast": cast, "store": store, "copy_stage": stage, "out": out}
        return served.op(x, norm=norm, rope=rope, **given)
    y = x if norm is None else _normalised(x, *norm)
    copy = y
    if rope is not None:
        y = served.table["transform.rotary"](y, rope)
    if stage == "transform":
        copy = y
    result: Any = y
    if store is not None:
        kept = served.table["cache.store"](y, *store, want_values=stage == "cast_back")
        copy, result = copy if kept is None else kept.to(x.dtype), None
    elif cast is not None:
        result = served.table["quant.cast_per_token"](y, fmt=cast[0], group=cast[1], sf=cast[2])
    return result if stage is None else (result, copy)


def swiglu(
    served: Served,
    x: Tensor,
    *,
    clamp: float,
    weight: Tensor | None = None,
    cast: tuple[str, int, str] | None = None,
    dtype: torch.dtype | None = None,
) -> Any:
    """``moe.swiglu``."""
    fits = is_rows(x) and x.dim() == 2 and x.shape[1] % (2 * WHOLE) == 0 and clamp > 0.0 and dtype in (None, x.dtype)
    if not fits or not (weight is None or (weight.dtype == torch.float32 and weight.shape == x.shape[:1])):
        return served.op(x, clamp=clamp, weight=weight, cast=cast, dtype=dtype)
    inner = x.shape[1] // 2
    y = torch.empty(len(x), inner, dtype=torch.bfloat16)
    factor = torch.ones(len(x)) if weight is None else weight.contiguous()
    run("swiglu_rows", len(x), {"inner": inner}, x=x.contiguous(), weight=factor, y=y, limit=clamp, rows=len(x))
    return y if cast is None else served.table["quant.cast_per_token"](y, fmt=cast[0], group=cast[1], sf=cast[2])


SERVED = {
    "norm.rms": rms,
    "quant.cast_per_token": cast_per_token,
    "transform.rotary": rotary,
    "transform.fused": fused,
    "moe.swiglu": swiglu,
}
