"""Byte layouts of cache entries, and what an entry of values is in bytes (``spec/kernels.md`` 1.3)."""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

from deepinfer_core.conformance.reference import formats


@frozen
class EntryLayout:
    """How one entry lies in bytes.

    :ivar element: ``e4m3``, ``e2m1``, or ``raw`` (values of ``dtype``).
    :ivar group: Values that share a scale; 0: the whole entry.
    :ivar scale: ``ue8m0``, ``e4m3``, ``f32``, or "" without scales.
    :ivar page_wide: The data of all entries of a page come first, then all scales; otherwise each entry is followed by
        its own scales.
    """

    element: str
    group: int = 0
    scale: str = ""
    page_wide: bool = False
    dtype: torch.dtype = torch.uint8

    def data_bytes(self, width: int) -> int:
        if self.element == "raw":
            return width * int(self.dtype.itemsize)
        return width if self.element == "e4m3" else width // 2

    def scale_bytes(self, width: int) -> int:
        if not self.scale:
            return 0
        return width // (self.group or width) * (4 if self.scale == "f32" else 1)

    def entry_bytes(self, width: int) -> int:
        return self.data_bytes(width) + self.scale_bytes(width)


LAYOUTS = {
    "v41": EntryLayout("e4m3", 32, "ue8m0"),
    "v41_fp4": EntryLayout("e2m1", 16, "e4m3"),
    "index_fp4": EntryLayout("e2m1", 32, "ue8m0", page_wide=True),
    "index_mxfp8": EntryLayout("e4m3", 32, "ue8m0", page_wide=True),
    "index_fp8": EntryLayout("e4m3", 0, "f32", page_wide=True),
    "bf16": EntryLayout("raw", dtype=torch.bfloat16),
    "f32": EntryLayout("raw", dtype=torch.float32),
}


def encode(kv: Tensor, layout: EntryLayout) -> tuple[Tensor, Tensor]:
    """``kv`` ``[n, d]`` (bf16 or fp32) -> data bytes ``[n, *]`` and scale bytes ``[n, *]`` (none for raw formats)."""
    if layout.element == "raw":
        raw = kv.to(layout.dtype).contiguous().view(torch.uint8)
        return raw, raw[:, :0]
    coded = formats.cast(kv, layout.element, layout.group or kv.shape[-1], layout.scale)
    return coded.data, coded.sf.contiguous().view(torch.uint8)


def decode(data: Tensor, scale: Tensor, layout: EntryLayout, width: int) -> Tensor:
    """Bytes of entries -> fp64 ``[n, width]``."""
    if layout.element == "raw":
        return data.contiguous().view(layout.dtype).double()
    sf = scale.contiguous().view(torch.float32) if layout.scale == "f32" else scale
    return formats.decode(data, sf, layout.element, layout.group or width, layout.scale)
