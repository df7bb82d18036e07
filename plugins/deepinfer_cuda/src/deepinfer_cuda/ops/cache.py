"""Storing and reading cache entries by their byte formats (``spec/kernels.md`` 1.3, 2.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.caches import CacheView
from deepinfer_core.types import CacheSpec
from deepinfer_cuda import rows
from deepinfer_cuda.device.arenas import CudaCaches
from deepinfer_cuda.plain import plain_op
from deepinfer_cuda.tensors import QuantTensor
from deepinfer_cuda.tl.parts.row_layout import WARP, row_layout
from deepinfer_cuda.tl.store.gather import THREADS, gather_codes, gather_rows

MANY_SEGMENTS = 1024
"""Segments from which a block makes more rows, so that fewer blocks look through them."""


def store(kv: Tensor, view: Any, slots: Tensor, *, want_values: bool = False) -> Tensor | None:
    """Quantise ``kv`` ``[n, d]`` by the format of ``view`` and write entry i at ``slots[i]`` (int32; -1 skips it).

    :returns: what was stored, dequantised (``[n, d]``, skipped rows included), when ``want_values``.
    """
    takes = rows.takes_rows(kv) and rows.takes_store(kv, view, slots)
    if not takes or (want_values and view.layout.sf_kind in ("", "f32")):
        return plain_op("cache.store")(kv, view, slots, want_values=want_values)  # type: ignore[no-any-return]
    exact = torch.empty(kv.shape, dtype=kv.dtype, device=kv.device) if want_values else None
    rows.launch_rows(
        rows.as_rows(kv),
        cast=rows.cast_of(view),
        store=(view, slots),
        exact=None if exact is None else rows.as_rows(exact),
    )
    return None if exact is None else exact.float()


def load_segments(
    view: Any, segments: Tensor, total: int, *, dtype: torch.dtype = torch.bfloat16, out: Tensor | None = None
) -> Any:
    """Gather runs of entries: ``segments`` int32 ``[m, 4]`` of (unit, begin, end, destination row).

    Unit -1 gives zeros, and so does a row that no segment names. Runs must not share destination rows.

    :returns: ``[total, width]`` of ``dtype``, or a QuantTensor for quantised index formats.
    :raises ShapeContractError: ``segments`` is not ``[m, 4]``, or ``out`` has another shape.
    """
    layout, as_codes = view.layout, view.layout.split_page and out is None
    if _takes_segments(view, segments):
        if as_codes and layout.data_bytes(view.width) % rows.ALIGNED == 0:
            return _load_codes(view, segments, total)
        if not as_codes and _takes_values(view, total, dtype, out):
            result = torch.empty(total, view.width, dtype=dtype, device=segments.device) if out is None else out
            if total:
                _load_values(view, segments, result)
            return result
    return plain_op("cache.load_segments")(view, segments, total, dtype=dtype, out=out)


def _takes_segments(view: Any, segments: Tensor) -> bool:
    return (
        rows.on_device(segments, view.tensor)
        and segments.dtype == torch.int32
        and segments.dim() == 2
        and segments.shape[1] == 4
        and rows.is_aligned(segments)
        and segments.is_contiguous()
        and (not view.layout.split_page or rows.cache_unit(view) == rows.ALIGNED)
    )


def _takes_values(view: Any, total: int, dtype: torch.dtype, out: Tensor | None) -> bool:
    layout = row_layout(view.width)
    if layout is None or layout.lanes > WARP or view.layout.raw == "f32" or view.width < 16:
        return False
    if out is None:
        return dtype == torch.bfloat16
    return (
        rows.on_device(out)
        and out.dtype == torch.bfloat16
        and out.shape == (total, view.width)
        and out.is_contiguous()
        and rows.is_aligned(out)
    )


def _load_values(view: Any, segments: Tensor, out: Tensor) -> None:
    fmt, group, sf = rows.cast_of(view)
    layout = row_layout(view.width)
    side = THREADS // (layout.lanes if layout is not None else WARP)
    tile = 128 if segments.shape[0] > MANY_SEGMENTS else max(32, side)
    launch = gather_rows(
        width=view.width,
        fmt=fmt,
        group=group,
        sf=sf,
        split=view.layout.split_page,
        unit=rows.cache_unit(view),
        tile=tile,
        unroll=min(8, tile // side),
    )
    launch(view.tensor, segments, out, view.page)


def _load_codes(view: Any, segments: Tensor, total: int) -> QuantTensor:
    layout, device = view.layout, segments.device
    fmt, group, sf = rows.cast_of(view)
    data_bytes, scale_bytes = layout.data_bytes(view.width), layout.scale_bytes(view.width)
    codes = torch.empty(total, data_bytes, dtype=torch.uint8, device=device)
    kind = torch.float32 if sf == "f32" else torch.uint8
    scales = torch.empty(total, scale_bytes // kind.itemsize, dtype=kind, device=device)
    if total:
        launch = gather_codes(data_bytes=data_bytes, scale_bytes=scale_bytes, piece=rows.ALIGNED, tile=THREADS)
        launch(view.tensor, segments, codes, scales.view(torch.uint8), view.page)
    return QuantTensor.of_codes(codes, scales, fmt=fmt, group=group, sf_kind=sf)


def alloc(specs: Sequence[CacheSpec], units: Mapping[str, int]) -> CudaCaches:
    """Zeroed memory on the current device for ``units[pool]`` units of each pool.

    :raises CapacityError: the device has not that much.
    """
    return CudaCaches(specs, units, torch.device("cuda", torch.cuda.current_device()))


def view(caches: CudaCaches, name: str, layer: int) -> CacheView:
    """The entries of cache ``name`` at ``layer``."""
    return caches.view(name, layer)


OPS = {"cache.alloc": alloc, "cache.view": view, "cache.store": store, "cache.load_segments": load_segments}
