"""Storing and reading cache entries by their byte formats (``spec/kernels.md`` 1.3, 2.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deepinfer_core.types import CacheSpec
from deepinfer_cpu.caches import CacheView, CpuCaches
from deepinfer_cpu.contracts import FLOATS, INTEGERS, check_like, shape_error
from deepinfer_cpu.formats import RAW_DTYPES, CacheFormat
from deepinfer_cpu.ops.quant import scale_groups
from deepinfer_cpu.tensors import DECODE_DATA, ENCODE_DATA, QuantTensor, decode_scale, encode_scale

Slots = npt.NDArray[np.integer]


def alloc(specs: Sequence[CacheSpec], units: Mapping[str, int]) -> CpuCaches:
    """Zeroed memory for ``units[pool]`` units of each pool. Raises CapacityError."""
    return CpuCaches(specs, units)


def view(caches: CpuCaches, name: str, layer: int) -> CacheView:
    """The entries of cache ``name`` at ``layer``."""
    return caches.view(name, layer)


def encode(kv: Tensor, layout: CacheFormat) -> tuple[Tensor, Tensor, Tensor]:
    """``kv`` ``[n, d]`` -> data bytes ``[n, *]``, scale bytes ``[n, *]``, and fp32 scales ``[n, groups, 1]``.

    Raw formats have no scales (``[n, 0]``); the third result is then the values as stored.
    """
    if layout.raw:
        raw = kv.to(RAW_DTYPES[layout.raw]).contiguous()
        data = raw.view(torch.uint8)
        return data, data[:, :0], raw
    scaled, scale = scale_groups(kv, layout.fmt, layout.group_of(kv.shape[-1]), layout.sf_kind)
    data = ENCODE_DATA[layout.fmt](scaled.view(kv.shape))
    return data, encode_scale(scale.view(scale.shape[:2]), layout.sf_kind).view(torch.uint8), scale


def store(kv: Tensor, view: CacheView, slots: Tensor, *, want_values: bool = False) -> Tensor | None:
    """Quantise ``kv`` ``[n, d]`` by the format of ``view`` and write entry i at ``slots[i]`` (int32; -1 skips it).

    :returns: what was stored, dequantised (``[n, d]``, skipped rows included), when ``want_values``.
    """
    if kv.dim() != 2 or kv.shape[1] != view.width or kv.shape[0] != slots.shape[0]:
        raise shape_error("cache.store", "kv", f"[{slots.shape[0]}, {view.width}]", list(kv.shape))
    if kv.dtype not in FLOATS:
        raise shape_error("cache.store", "kv", "bf16 or fp32", kv.dtype)
    check_like("cache.store", "slots", slots, kv.shape[:1], *INTEGERS)
    where = slots.numpy()
    kept = None
    if where.size == 0 or where.min() < 0:
        kept = np.flatnonzero(where >= 0)
        if not want_values:
            if kept.size == 0:
                return None
            kv = kv[torch.from_numpy(kept)]
    data, scale, factor = encode(kv, view.layout)
    values = _values(view, data, factor) if want_values else None
    if kept is not None:
        where = where[kept]
        if want_values and kept.size:
            chosen = torch.from_numpy(kept)
            data, scale = data[chosen], scale[chosen]
    if where.size:
        _write(view, where, data, scale)
    return values


def _values(view: CacheView, data: Tensor, factor: Tensor) -> Tensor:
    """What was just encoded, dequantised: ``factor`` as :func:`encode` returns it."""
    if view.layout.raw:
        return factor
    values = DECODE_DATA[view.layout.fmt](data)
    groups = factor.shape[1]
    return values.view(data.shape[0], groups, view.width // groups).mul_(factor).view(data.shape[0], view.width)


def _write(view: CacheView, where: Slots, data: Tensor, scale: Tensor) -> None:
    if view.layout.split_page:
        unit, entry = _unit_entry(where, view.page)
        pages, scales = view.split()
        pages[unit, entry] = data
        scales[unit, entry] = scale
        return
    entries = torch.cat([data, scale], dim=1) if scale.shape[1] else data
    rows, step = view.rows()
    if step:
        rows.index_copy_(0, _row_index(where, view.page, step), entries)
    else:
        unit, entry = _unit_entry(where, view.page)
        rows[unit, entry] = entries


def _row_index(where: Slots, page: int, step: int) -> Tensor:
    rows = where.astype(np.int64)
    if step != page:
        rows += where // page * (step - page)
    return torch.from_numpy(rows)


def _unit_entry(where: Slots, page: int) -> tuple[Tensor, Tensor]:
    unit, entry = np.divmod(where.astype(np.int64), page)
    return torch.from_numpy(unit), torch.from_numpy(entry)


def read(view: CacheView, where: Slots) -> tuple[Tensor, Tensor]:
    """Data and scale bytes of entries at ``where`` (no -1) ``[n]``."""
    if view.layout.split_page:
        unit, entry = _unit_entry(where, view.page)
        pages, scales = view.split()
        return pages[unit, entry], scales[unit, entry]
    rows, step = view.rows()
    if step:
        found = rows.index_select(0, _row_index(where, view.page, step))
    else:
        unit, entry = _unit_entry(where, view.page)
        found = rows[unit, entry]
    data = view.layout.data_bytes(view.width)
    return found[:, :data], found[:, data:]


def decode(view: CacheView, data: Tensor, scale: Tensor) -> Tensor:
    """Entries' bytes -> fp32 ``[n, width]``."""
    layout = view.layout
    if layout.raw:
        return data.contiguous().view(RAW_DTYPES[layout.raw]).float()
    values = DECODE_DATA[layout.fmt](data)
    if layout.sf_kind == "f32":
        scale = scale.contiguous().view(torch.float32)
    factor = decode_scale(scale, layout.sf_kind).unsqueeze(-1)
    grouped = values.view(data.shape[0], factor.shape[1], layout.group_of(view.width))
    return grouped.mul_(factor).view(data.shape[0], view.width)


def gather(view: CacheView, slots: Slots) -> Tensor:
    """fp32 values ``[n, width]`` at physical ``slots`` ``[n]`` (numpy, no -1)."""
    return decode(view, *read(view, slots))


def load_segments(
    view: CacheView, segments: Tensor, total: int, *, dtype: torch.dtype = torch.bfloat16, out: Tensor | None = None
) -> Tensor | QuantTensor:
    """Gather runs of entries: ``segments`` int32 ``[m, 4]`` of (unit, begin, end, destination row).

    Unit -1 gives zeros, and so does a row that no segment names.

    :returns: ``[total, width]`` of ``dtype``, or a QuantTensor for quantised index formats.
    :raises ShapeContractError: ``segments`` is not ``[m, 4]``, or ``out`` has another shape.
    """
    if segments.dim() != 2 or segments.shape[1] != 4 or segments.dtype not in INTEGERS:
        raise shape_error("cache.load_segments", "segments", "integers [m, 4]", (segments.dtype, list(segments.shape)))
    if out is not None:
        check_like("cache.load_segments", "out", out, (total, view.width), *FLOATS)
    runs = segments.numpy().astype(np.int64)
    runs = runs[runs[:, 0] >= 0]
    lengths = runs[:, 2] - runs[:, 1]
    count = int(lengths.sum())
    step = np.arange(count) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    source = np.repeat(runs[:, 0] * view.page + runs[:, 1], lengths) + step
    target = torch.from_numpy(np.repeat(runs[:, 3], lengths) + step)
    if view.layout.split_page and out is None:
        return _load_quantised(view, source, target, total)
    result = torch.zeros(total, view.width, dtype=dtype) if out is None else out.zero_()
    if count:
        result.index_copy_(0, target, gather(view, source).to(result.dtype))
    return result


def _load_quantised(view: CacheView, source: Slots, target: Tensor, total: int) -> QuantTensor:
    layout = view.layout
    data = torch.zeros(total, layout.data_bytes(view.width), dtype=torch.uint8)
    scale = torch.zeros(total, layout.scale_bytes(view.width), dtype=torch.uint8)
    if target.numel():
        found, factors = read(view, source)
        data.index_copy_(0, target, found)
        scale.index_copy_(0, target, factors)
    sf = scale.view(torch.float32) if layout.sf_kind == "f32" else scale
    group = layout.group_of(view.width)
    return QuantTensor.of_codes(data, sf, fmt=layout.fmt, group=group, sf_kind=layout.sf_kind)
