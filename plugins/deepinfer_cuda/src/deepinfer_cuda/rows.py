"""Calls of the row kernel: whether it takes a call, which instance serves it, and its arguments in order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_cuda.tl.parts.row_layout import CHUNK, row_layout
from deepinfer_cuda.tl.store.rows import PLAIN, rows

FORMATS = {("e4m3", "ue8m0"), ("e2m1", "ue8m0"), ("e2m1", "e4m3"), ("e4m3", "f32"), ("e2m1", "f32")}
WEIGHTS = (torch.float32, torch.bfloat16)
ALIGNED = 16
"""Bytes that rows must be a multiple of apart, and begin at."""


def as_rows(x: Tensor) -> Tensor:
    """``x`` of up to three dimensions as ``[n, h, width]``: a view, or a copy where rows are not 16 bytes aligned."""
    if x.dim() < 3:
        x = x.unsqueeze(0).unsqueeze(0) if x.dim() == 1 else x.unsqueeze(1)
    return x if is_aligned(x) else x.contiguous()


def as_pieces(x: Tensor, width: int) -> Tensor:
    """``x`` ``[..., K]`` as ``[n, K / width, width]``: the pieces of a row side by side, as if they were heads."""
    x = x if x.dim() <= 2 or not x.is_contiguous() else x.flatten(0, -2)
    if x.dim() > 2:
        x = x.contiguous().flatten(0, -2)
    if x.dim() == 1:
        x = x.unsqueeze(0)
    x = x.unflatten(-1, (x.shape[-1] // width, width))
    return x if is_aligned(x) else x.contiguous()


def is_aligned(x: Tensor) -> bool:
    """Whether rows of ``x`` can be read and written 16 bytes at a time."""
    step = ALIGNED // x.element_size()
    return x.data_ptr() % ALIGNED == 0 and x.stride(-1) == 1 and all(s % step == 0 for s in x.stride()[:-1])


def on_device(*tensors: Tensor) -> bool:
    """Whether all of ``tensors`` lie where kernels run."""
    return all(t.is_cuda for t in tensors)


def takes_rows(x: Tensor) -> bool:
    """Whether ``x`` is bf16 rows on a device, of a width that the kernel knows."""
    return (
        on_device(x)
        and x.dtype == torch.bfloat16
        and 1 <= x.dim() <= 3
        and (x.shape[-1] == 1 or x.stride(-1) == 1)
        and has_layout(x.shape[-1])
    )


def takes_target(out: Tensor, x: Tensor) -> bool:
    """Whether ``out`` can be written like ``x``, 16 bytes at a time."""
    return on_device(out) and out.dtype == x.dtype and out.shape == x.shape and is_aligned(out)


def takes_norm(x: Tensor, w: Tensor) -> bool:
    """Whether the kernel takes ``w`` as weight of rows of ``x``."""
    return on_device(w) and w.shape == x.shape[-1:] and w.dtype in WEIGHTS and w.is_contiguous() and is_aligned(w)


def takes_cast(width: int, cast: tuple[str, int, str]) -> bool:
    """Whether the kernel quantises rows of ``width`` so."""
    fmt, group, sf = cast
    return (fmt, sf) in FORMATS and group > 0 and has_layout(width, group)


def takes_angles(x: Tensor, rope: tuple[Tensor, Tensor, bool]) -> bool:
    """Whether the kernel turns rows of ``x`` by these angles."""
    table, positions, _ = rope
    size = table.shape[-1]
    return (
        on_device(table, positions)
        and table.dim() == 2
        and table.dtype == torch.float32
        and table.is_contiguous()
        and is_aligned(table)
        and 0 < size <= x.shape[-1]
        and size % CHUNK == 0
        and positions.dtype in (torch.int32, torch.int64)
        and positions.shape == x.shape[:1]
        and positions.is_contiguous()
        and x.dim() >= 2
    )


def takes_store(x: Tensor, view: Any, slots: Tensor) -> bool:
    """Whether the kernel writes rows of ``x`` into ``view`` at ``slots``."""
    layout = view.layout
    if x.dim() != 2 or x.shape[1] != view.width or slots.shape != x.shape[:1] or slots.dtype != torch.int32:
        return False
    if not on_device(slots, view.tensor) or not slots.is_contiguous() or layout.raw == "f32":
        return False
    if layout.raw:
        return True
    if layout.split_page and cache_unit(view) < ALIGNED:
        return False
    return takes_cast(view.width, cast_of(view))


def cast_of(view: Any) -> tuple[str, int, str]:
    """Format, group and scale of the entries of ``view``."""
    layout = view.layout
    return layout.fmt, 0 if layout.raw else layout.group_of(view.width), layout.sf_kind


def has_layout(width: int, group: int = 0) -> bool:
    """Whether the kernel takes rows of ``width`` values, quantised in groups of ``group``."""
    layout = row_layout(width)
    if layout is None:
        return False
    threads = group // CHUNK
    return group == 0 or (
        group % CHUNK == 0 and threads & (threads - 1) == 0 and threads <= min(layout.lanes, 32) and width % group == 0
    )


def cache_unit(view: Any) -> int:
    """Bytes (16, 8, 4, 2 or 1) that the address of every entry of ``view`` is a multiple of."""
    tensor = view.tensor
    bits = tensor.data_ptr() | view.block_stride | ALIGNED
    if not view.layout.split_page:
        bits |= tensor.stride(1) * tensor.element_size()
    return bits & -bits


def launch_rows(
    x: Tensor,
    *,
    unroll: int = 1,
    norm: tuple[Tensor, float] | None = None,
    out_scale: float = 1.0,
    residual: Tensor | None = None,
    rope: tuple[Tensor, Tensor, bool] | None = None,
    cast: tuple[str, int, str] | None = None,
    store: tuple[Any, Tensor] | None = None,
    y: Tensor | None = None,
    copied: Tensor | None = None,
    exact: Tensor | None = None,
    codes: Tensor | None = None,
    scales: Tensor | None = None,
) -> None:
    """Run the stages on ``x`` bf16 ``[n, h, width]`` (see :func:`as_rows`) into tensors of the same shape."""
    n, heads, width = x.shape
    if not n or not heads:
        return
    fmt, group, sf = cast or ("", 0, "")
    params = PLAIN | {"width": width, "heads": heads, "unroll": unroll}
    if residual is not None:
        params["residual"] = True
    if norm is not None:
        params["norm"] = "float32" if norm[0].dtype == torch.float32 else "bfloat16"
        params["scaled"] = out_scale != 1.0
    if rope is not None:
        params |= {"rope": rope[0].shape[1], "conjugate": rope[2]}
        params["positions"] = "int32" if rope[1].dtype == torch.int32 else "int64"
    view = slots = None
    if store is not None:
        view, slots = store
        params["target"] = "split" if view.layout.split_page else "cache"
        params["unit"] = cache_unit(view)
    elif fmt:
        params["target"] = "codes" if codes is not None else "scales"
    params |= {"fmt": fmt, "group": group, "sf": sf}
    params |= {"exact": exact is not None, "out": y is not None, "copy": copied is not None}
    rows(**params)(
        x,
        0 if y is None else y,
        0 if residual is None else residual,
        0 if norm is None else norm[0],
        0 if rope is None else rope[0],
        0 if rope is None else rope[1],
        0 if copied is None else copied,
        0 if exact is None else exact,
        0 if codes is None else codes,
        0 if scales is None else scales,
        0 if view is None else view.tensor.unsqueeze(1) if view.layout.split_page else view.tensor,
        0 if slots is None else slots,
        0 if view is None else view.page,
        0.0 if norm is None else norm[1],
        out_scale,
    )
