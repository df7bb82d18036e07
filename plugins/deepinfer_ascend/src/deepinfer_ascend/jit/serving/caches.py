"""Caches: their memory, entries stored by format, and runs of entries read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from deepinfer_ascend.chip import VECTOR_CORES
from deepinfer_ascend.jit.serving.parts import Served, is_int32, is_rows, run
from deepinfer_ascend.tensors import QuantTensor

NUMBERS: Mapping[str, tuple[str, torch.dtype]] = {
    "bf16": ("bfloat16", torch.bfloat16),
    "f32": ("float32", torch.float32),
}
RESULTS: Mapping[torch.dtype, str] = {torch.bfloat16: "bfloat16", torch.float32: "float32"}
MOST_BYTES = 32
"""A copy to a core's memory begins at a multiple of: what entries and their parts may be whole numbers of, or not."""


def flat_cache(view: Any) -> Tensor:
    """All bytes from the first entry of ``view`` to its last."""
    units = view.tensor.shape[0]
    return view.tensor.as_strided(((units - 1) * view.block_stride + view.tensor[0].numel(),), (1,))  # type: ignore[no-any-return]


def _takes(view: Any) -> bool:
    """A format with kernels (scales in fp32 are of CUDA alone), in whole groups, and no empty cache."""
    layout = view.layout
    whole = (
        view.width % 16 == 0
        if layout.raw
        else layout.sf_kind != "f32" and view.width % layout.group_of(view.width) == 0
    )
    return bool(whole and view.tensor.numel() and view.tensor.dtype == torch.uint8)


def _numbers(view: Any, cache: Tensor) -> tuple[str, Tensor, int] | None:
    """Their type, the cache as numbers, and its stride in them; None where it does not begin at a whole one."""
    name, dtype = NUMBERS[view.layout.raw]
    size = dtype.itemsize
    if view.block_stride % size or cache.storage_offset() % size or cache.numel() % size:
        return None
    return name, cache.view(dtype), view.block_stride // size


def store(served: Served, kv: Tensor, view: Any, slots: Tensor, *, want_values: bool = False) -> Any:
    """``cache.store`` of bf16 rows."""
    fits = is_rows(kv) and kv.dim() == 2 and kv.shape[1] == view.width and is_int32(slots) and len(slots) == len(kv)
    if not fits or not _takes(view) or (want_values and view.layout.raw):
        return served.op(kv, view, slots, want_values=want_values)
    cache, given = flat_cache(view), {"x": kv.contiguous(), "slots": slots.contiguous(), "page": view.page}
    if view.layout.raw:
        found = _numbers(view, cache)
        if found is None:
            return served.op(kv, view, slots, want_values=want_values)
        name, cache, stride = found
        sizes = {"width": view.width, "dtype": name}
        run("store_numbers", len(kv), sizes, cache=cache, stride=stride, rows=len(kv), size=cache.numel(), **given)
        return None
    sizes = {"format": view.format, "width": view.width, "values": want_values}
    if want_values:
        given["kept"] = torch.empty(kv.shape, dtype=torch.float32)
    run(
        "store_entries",
        len(kv),
        sizes,
        cache=cache,
        stride=view.block_stride,
        rows=len(kv),
        size=cache.numel(),
        **given,
    )
    return given.get("kept")


def load_segments(
    served: Served, view: Any, segments: Tensor, total: int, *, dtype: torch.dtype = torch.bfloat16, out: Any = None
) -> Any:
    """``cache.load_segments``."""
    result = dtype if out is None else out.dtype
    fits = is_int32(segments, dim=2) and segments.shape[1] == 4 and len(segments) and total and result in RESULTS
    layout, codes = view.layout, view.layout.split_page and out is None
    shaped = out is None or (out.shape == (total, view.width) and out.is_contiguous())
    if not fits or not shaped or not _takes(view):
        return served.op(view, segments, total, dtype=dtype, out=out)
    cache = flat_cache(view)
    given = {"segments": segments.contiguous(), "page": view.page, "runs": len(segments), "total": total}
    cores = VECTOR_CORES  # the device alone knows how long the longest run is
    if codes:
        data = torch.zeros(total, layout.data_bytes(view.width), dtype=torch.uint8, device=segments.device)
        sf = torch.zeros(total, layout.scale_bytes(view.width), dtype=torch.uint8, device=segments.device)
        given |= {"cache": cache, "codes": data, "sf": sf, "stride": view.block_stride, "size": cache.numel()}
        run("load_codes", cores, {"format": view.format, "width": view.width}, **given)
        group = layout.group_of(view.width)
        return QuantTensor.of_codes(data, sf, fmt=layout.fmt, group=group, sf_kind=layout.sf_kind)
    sizes = {"width": view.width, "dtype": RESULTS[result]}
    made = torch.zeros(total, view.width, dtype=result, device=segments.device) if out is None else out.zero_()
    if layout.raw:
        found = _numbers(view, cache)
        if found is None:
            return served.op(view, segments, total, dtype=dtype, out=out)
        name, cache, stride = found
        run(
            "load_numbers",
            cores,
            sizes | {"stored": name},
            cache=cache,
            stride=stride,
            size=cache.numel(),
            y=made,
            **given,
        )
        return made
    given |= {"cache": cache, "stride": view.block_stride, "size": cache.numel(), "y": made}
    run("load_runs", cores, sizes | {"format": view.format}, **given)
    return made


SERVED = {"cache.store": store, "cache.load_segments": load_segments}
