"""Storing and reading cache entries by their byte formats (``spec/kernels.md`` 1.3, 2.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from deepinfer_core.types import CacheSpec
from deepinfer_cpu.caches import CacheView, CpuCaches
from deepinfer_cpu.contracts import FLOATS, INTEGERS, check_like, shape_error
from deepinfer_cpu.formats import RAW_DTYPES, CacheFormat
from deepinfer_cpu.ops.quant import scale_groups
from deepinfer_cpu.scalars import is_host
from deepinfer_cpu.tensors import DECODE_DATA, ENCODE_DATA, QuantTensor, decode_scale, encode_scale


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
    layout = view.layout
    if is_host(slots):
        kept = None if bool((slots >= 0).all()) else (slots >= 0).nonzero().squeeze(1)
        if kept is not None and not want_values:
            kv, slots, kept = kv[kept], slots[kept], None
        data, scale, factor = encode(kv, layout)
        values = _values(view, data, factor) if want_values else None
        if kept is not None:
            slots, data, scale = slots[kept], data[kept], scale[kept]
    else:
        data, scale, factor = encode(kv, layout)
        values = _values(view, data, factor) if want_values else None
        slots, data, scale = _without_gaps(view, slots, data, scale)
    if slots.shape[0]:
        _write(view, slots, data, scale)
    return values


def _without_gaps(view: CacheView, slots: Tensor, data: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same entries where the host may not ask which are skipped: a skipped one repeats the first that is not, and
    where all are skipped, the bytes of slot 0 are written over themselves."""
    if not slots.shape[0] or not view.tensor.shape[0]:
        return slots[:0], data[:0], scale[:0]
    given = slots >= 0
    first = given.to(torch.uint8).argmax(0, keepdim=True)
    source = torch.where(given, torch.arange(slots.shape[0], device=slots.device), first)
    slots, some = slots.index_select(0, source).clamp_(min=0), given.index_select(0, first).unsqueeze(1)
    there = read(view, slots.new_zeros(1))
    data, scale = (
        torch.where(some, new.index_select(0, source), old) for new, old in zip((data, scale), there, strict=True)
    )
    return slots, data, scale


def _values(view: CacheView, data: Tensor, factor: Tensor) -> Tensor:
    """What was just encoded, dequantised: ``factor`` as :func:`encode` returns it."""
    layout = view.layout
    if layout.raw:
        return factor
    values = DECODE_DATA[layout.fmt](data)
    groups = factor.shape[1]
    return values.view(data.shape[0], groups, view.width // groups).mul_(factor).view(data.shape[0], view.width)


def _write(view: CacheView, slots: Tensor, data: Tensor, scale: Tensor) -> None:
    if view.layout.split_page:
        unit, entry = _unit_entry(slots, view.page)
        pages, scales = view.split()
        pages[unit, entry] = data
        scales[unit, entry] = scale
        return
    entries = torch.cat([data, scale], dim=1) if scale.shape[1] else data
    rows, step = view.rows()
    if step:
        rows.index_copy_(0, _row_index(slots, view.page, step), entries)
    else:
        unit, entry = _unit_entry(slots, view.page)
        rows[unit, entry] = entries


def _row_index(slots: Tensor, page: int, step: int) -> Tensor:
    rows = slots.long()
    if step != page:
        rows = rows + rows.div(page, rounding_mode="floor") * (step - page)
    return rows


def _unit_entry(slots: Tensor, page: int) -> tuple[Tensor, Tensor]:
    rows = slots.long()
    unit = rows.div(page, rounding_mode="floor")
    return unit, rows - unit * page


def read(view: CacheView, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Data and scale bytes of entries at ``slots`` int ``[n]`` (no -1)."""
    layout = view.layout
    if layout.split_page:
        unit, entry = _unit_entry(slots, view.page)
        pages, scales = view.split()
        return pages[unit, entry], scales[unit, entry]
    rows, step = view.rows()
    if step:
        found = rows.index_select(0, _row_index(slots, view.page, step))
    else:
        unit, entry = _unit_entry(slots, view.page)
        found = rows[unit, entry]
    data = layout.data_bytes(view.width)
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


def gather(view: CacheView, slots: Tensor) -> Tensor:
    """fp32 values ``[n, width]`` at physical ``slots`` int ``[n]`` (no -1)."""
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
    layout = view.layout
    source, named = _sources(view, segments, total) if segments.shape[0] and view.tensor.shape[0] else (None, None)
    if layout.split_page and out is None:
        return _load_quantised(view, source, named, total)
    result = torch.empty(total, view.width, dtype=dtype, device=segments.device) if out is None else out
    if source is None or named is None:
        return result.zero_()
    found = gather(view, source).to(result.dtype)
    return result.copy_(found.masked_fill_(~named.unsqueeze(1), 0.0))


def _sources(view: CacheView, segments: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """Of each row of the result: the slot that it comes from, int64, and whether there is one, bool ``[total]``."""
    unit, begin, end, target = segments.long().unbind(1)
    length = (end - begin).masked_fill(unit < 0, 0)
    # Empty runs go behind all rows, so that the last run which begins at or before a row is the only one to hold it.
    key, order = torch.sort(target.masked_fill(length <= 0, total), stable=True)
    row = torch.arange(total, device=segments.device)
    at = torch.searchsorted(key, row, right=True) - 1
    run = order.index_select(0, at.clamp(min=0))
    step = row - target.index_select(0, run)
    named = (at >= 0) & (step < length.index_select(0, run))
    slot = unit.index_select(0, run) * view.page + begin.index_select(0, run) + step
    return slot.masked_fill_(~named, 0), named


def _load_quantised(view: CacheView, source: Tensor | None, named: Tensor | None, total: int) -> QuantTensor:
    layout, device = view.layout, view.tensor.device
    if source is None or named is None:
        data = torch.zeros(total, layout.data_bytes(view.width), dtype=torch.uint8, device=device)
        scale = torch.zeros(total, layout.scale_bytes(view.width), dtype=torch.uint8, device=device)
    else:
        absent = ~named.unsqueeze(1)
        data, scale = (part.masked_fill(absent, 0) for part in read(view, source))
    sf = scale.view(torch.float32) if layout.sf_kind == "f32" else scale
    group = layout.group_of(view.width)
    return QuantTensor.of_codes(data, sf, fmt=layout.fmt, group=group, sf_kind=layout.sf_kind)
