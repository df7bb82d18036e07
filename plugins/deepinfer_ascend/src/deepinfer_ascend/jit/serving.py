"""Lowered kernels in place of plain ops, under emulation and where they are asked for: ``DEEPINFER_ASCEND_LOWERED=1``.

Each is executed on the processor for the arguments that it takes (:mod:`deepinfer_ascend.jit.hosted`); others go to the
op as it is. Off by default: it needs TileLang and g++, and the first call of each size lowers and compiles.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from deepinfer_ascend.chip import VECTOR_CORES
from deepinfer_ascend.jit import hosted
from deepinfer_ascend.jit.lowering import lowered
from deepinfer_ascend.ops.quant import can_cast
from deepinfer_ascend.tensors import QuantTensor

VARIABLE = "DEEPINFER_ASCEND_LOWERED"
Op = Callable[..., Any]
WHOLE = 16
"""bf16 values that a copy to a core's memory begins at a multiple of."""


def asked(environ: Mapping[str, str] = os.environ) -> bool:
    return environ.get(VARIABLE, "0") not in ("", "0")


def serve(ops: Mapping[str, Op]) -> dict[str, Op]:
    """Those of ``ops`` that a lowered kernel serves, with the kernel in front."""
    cast = functools.partial(cast_per_token, ops["quant.cast_per_token"])
    put = functools.partial(store, ops["cache.store"])
    turn = functools.partial(rotary, ops["transform.rotary"])
    served = {
        "quant.cast_per_token": cast,
        "transform.rotary": turn,
        "norm.rms": functools.partial(rms, ops["norm.rms"], cast),
        "transform.fused": functools.partial(fused, ops["transform.fused"], turn, put),
        "moe.swiglu": functools.partial(swiglu, ops["moe.swiglu"], cast),
        "meta.window_index_decode": functools.partial(window_index_decode, ops["meta.window_index_decode"]),
        "meta.compressed_index": functools.partial(compressed_index, ops["meta.compressed_index"]),
        "meta.gather_rows": functools.partial(gather_rows, ops["meta.gather_rows"]),
        "cache.store": put,
        "sample.mask": functools.partial(mask, ops["sample.mask"]),
    }
    return {op: functools.wraps(ops[op])(call) for op, call in served.items()}


def _run(name: str, rows: int, sizes: Mapping[str, int], **arguments: Any) -> None:
    if rows:
        hosted.run(lowered(name, **sizes), min(rows, VECTOR_CORES), rows=rows, **arguments)


def _is_rows(x: Any) -> bool:
    """bf16 rows that a core takes as they are."""
    return isinstance(x, Tensor) and x.dtype == torch.bfloat16 and x.dim() >= 2 and x.shape[-1] % WHOLE == 0


def _flat(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]).contiguous()


def _normalised(x: Tensor, w: Tensor, eps: float) -> Tensor:
    held = _flat(x)
    y = torch.empty_like(held)
    weight = w.float().contiguous()
    _run("rms_rows", len(held), {"width": x.shape[-1]}, x=held, w=weight, y=y, eps=eps)
    return y.view(x.shape)


def rms(
    op: Op,
    quantise: Op,
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
    fits = _is_rows(x) and w.shape == x.shape[-1:] and residual is None and out is None and out_scale == 1.0
    if not fits or not (cast is None or can_cast(x.shape[-1], cast)):
        given = {"residual": residual, "cast": cast, "want_bf16": want_bf16, "out_scale": out_scale, "out": out}
        return op(x, w, eps=eps, **given)
    y = _normalised(x, w, eps)
    q = None if cast is None else quantise(y, fmt=cast[0], group=cast[1], sf=cast[2])
    return (y if want_bf16 else None), q


def cast_per_token(op: Op, x: Tensor, *, fmt: str = "e4m3", group: int = 32, sf: str = "ue8m0", layout: str = "gemm",
                   out: Any = None) -> Any:  # fmt: skip
    """``quant.cast_per_token`` to E4M3, in whole copies of scales."""
    if not _is_rows(x) or (fmt, group, sf) != ("e4m3", 32, "ue8m0") or x.shape[-1] % 32 or out is not None:
        return op(x, fmt=fmt, group=group, sf=sf, layout=layout, out=out)
    held = _flat(x)
    codes = torch.empty(held.shape, dtype=torch.uint8)
    scales = torch.empty(len(held), x.shape[-1] // 32, dtype=torch.uint8)
    _run("cast_rows", len(held), {"width": x.shape[-1]}, x=held, codes=codes, scales=scales)
    return QuantTensor.of_codes(codes.view(x.shape), scales.view(*x.shape[:-1], -1), fmt=fmt, group=group, sf_kind=sf)


def rotary(op: Op, x: Tensor, rope: tuple[Any, ...], *, out: Tensor | None = None) -> Tensor:
    """``transform.rotary`` by rows that were made for a step."""
    first = getattr(rope[0], "first", None)
    if first is None or not _is_rows(x) or first.shape[0] != x.shape[0] or first.shape[1] * 2 > x.shape[-1]:
        return op(x, rope, out=out)
    held, heads = _flat(x), x.shape[1] if x.dim() == 3 else 1
    angles = torch.cat([first[..., 0], first[..., 1]], dim=-1).repeat_interleave(heads, 0)
    y = torch.empty_like(held)
    sizes = {"width": x.shape[-1], "turned": angles.shape[1]}
    _run("rotary_rows", len(held), sizes, x=held, angles=angles, y=y, flip=-1.0 if rope[1] else 1.0)
    return y.view(x.shape) if out is None else out.copy_(y.view(x.shape))


def fused(op: Op, turn: Op, put: Op, x: Tensor, *, norm: Any = None, rope: Any = None, **stages: Any) -> Any:
    """``transform.fused``: norm, rotation and store by kernels, a cast or a copy of what is stored by the op."""
    staged = stages.get("copy_stage") in ("norm", "transform") or stages.get("out") is not None
    known = rope is None or getattr(rope[0], "first", None) is not None
    if staged or not known or not _is_rows(x) or (norm is None and rope is None) or stages.get("hadamard") is not None:
        return op(x, norm=norm, rope=rope, **stages)
    y = x if norm is None else _normalised(x, *norm)
    y = y if rope is None else turn(y, rope)
    if stages.get("cast") is None and stages.get("store") is None:
        return y
    if stages.get("cast") is None and stages.get("copy_stage") is None:
        return put(y, *stages["store"])
    return op(y, **stages)


def swiglu(
    op: Op,
    quantise: Op,
    x: Tensor,
    *,
    clamp: float,
    weight: Tensor | None = None,
    cast: tuple[str, int, str] | None = None,
    dtype: torch.dtype | None = None,
) -> Any:
    """``moe.swiglu``."""
    if not _is_rows(x) or x.dim() != 2 or x.shape[1] % (2 * WHOLE) or clamp <= 0.0 or dtype not in (None, x.dtype):
        return op(x, clamp=clamp, weight=weight, cast=cast, dtype=dtype)
    inner = x.shape[1] // 2
    y = torch.empty(len(x), inner, dtype=torch.bfloat16)
    factor = torch.ones(len(x)) if weight is None else weight.contiguous()
    _run("swiglu_rows", len(x), {"inner": inner}, x=x.contiguous(), weight=factor, y=y, limit=clamp)
    return y if cast is None else quantise(y, fmt=cast[0], group=cast[1], sf=cast[2])


def window_index_decode(op: Op, offset_len: Tensor, ring: int, width: int) -> Tensor:
    """``meta.window_index_decode``."""
    if not _is_pairs(offset_len) or width % 8 or not width:
        return op(offset_len, ring, width)
    out = torch.empty(len(offset_len), width, dtype=torch.int32)
    _run("ring_indices", len(out), {"width": width}, start_length=offset_len.contiguous(), out=out, ring=ring)
    return out


def compressed_index(op: Op, offset_len: Tensor, width: int, *, base: int = 0, block_table: Tensor | None = None,
                     per_block: int = 0) -> Tensor:  # fmt: skip
    """``meta.compressed_index`` without a block table."""
    if not _is_pairs(offset_len) or block_table is not None or width % 8 or not width or not isinstance(base, int):
        return op(offset_len, width, base=base, block_table=block_table, per_block=per_block)
    out = torch.empty(len(offset_len), width, dtype=torch.int32)
    _run("run_indices", len(out), {"width": width}, start_length=offset_len.contiguous(), out=out, base=base)
    return out


def _is_pairs(x: Tensor) -> bool:
    return x.dtype is torch.int32 and x.dim() == 2 and x.shape[1] == 2


def gather_rows(op: Op, x: Tensor, idx: Tensor) -> Tensor:
    """``meta.gather_rows`` of bf16 rows."""
    if not _is_rows(x) or x.dim() != 2 or idx.dtype != torch.int32 or idx.dim() != 1 or not len(x):
        return op(x, idx)
    out = torch.empty(len(idx), x.shape[1], dtype=x.dtype)
    sizes = {"width": x.shape[1]}
    _run("gather_rows", len(idx), sizes, x=x.contiguous(), idx=idx.contiguous(), out=out, count=len(x))
    return out


def store(op: Op, kv: Tensor, view: Any, slots: Tensor, *, want_values: bool = False) -> Any:
    """``cache.store`` in format V41, where the values are not asked for."""
    fits = (
        _is_rows(kv) and kv.dim() == 2 and view.format == "v41" and view.width == kv.shape[1] and kv.shape[1] % 32 == 0
    )
    if not fits or want_values or slots.dtype != torch.int32 or slots.shape != kv.shape[:1] or not view.tensor.numel():
        return op(kv, view, slots, want_values=want_values)
    units, page, size = view.tensor.shape
    flat = view.tensor.as_strided(((units - 1) * view.block_stride + page * size,), (1,))
    given = {
        "slots": slots.contiguous(),
        "cache": flat,
        "page": page,
        "stride": view.block_stride,
        "size": flat.numel(),
    }
    _run("store_v41", len(kv), {"width": view.width}, x=kv.contiguous(), **given)
    return None


def mask(op: Op, logits: Tensor, bitmask: Tensor, reqs: Tensor, first_row: Tensor, step: int) -> Tensor:
    """``sample.mask`` of whole words of columns."""
    width = logits.shape[-1]
    fits = logits.dim() == 2 and logits.dtype == torch.float32 and logits.is_contiguous() and width % 32 == 0 and width
    if not fits or bitmask.dtype != torch.int32 or bitmask.shape != (len(reqs), width // 32) or not len(reqs):
        return op(logits, bitmask, reqs, first_row, step)
    begin = first_row[reqs.long()] + step
    places = torch.where(begin < first_row[reqs.long() + 1], begin, -1).int()
    kernel = lowered("mask_rows", width=width)
    given = {"bitmask": bitmask.contiguous(), "places": places, "rows": len(logits), "count": len(reqs)}
    hosted.run(kernel, VECTOR_CORES, logits=logits, **given)
    return logits
