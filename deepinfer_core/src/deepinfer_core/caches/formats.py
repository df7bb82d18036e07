"""Byte layouts of cache entries (``spec/kernels.md`` 1.3, ``spec/model.md`` 4.1)."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from deepinfer_core.errors import UnsupportedFormat

RAW_BYTES: Mapping[str, int] = {"bf16": 2, "f32": 4}
"""Bytes of a value in the formats that store plain numbers."""


@frozen
class CacheFormat:
    """How one entry of ``width`` values lies in bytes."""

    name: str
    fmt: str
    """Element format ``e4m3``, ``e2m1``, or ``raw`` (the number format ``raw``)."""
    group: int
    """Values that share a scale; 0 means the whole entry."""
    sf_kind: str
    """``ue8m0``, ``e4m3``, ``f32`` or "" (raw)."""
    split_page: bool
    """True: a page is all data, then all scales; False: data and scales of a token side by side."""
    raw: str = ""
    """``bf16`` or ``f32`` where entries are plain numbers."""

    def group_of(self, width: int) -> int:
        return self.group or width

    def data_bytes(self, width: int) -> int:
        if self.raw:
            return width * RAW_BYTES[self.raw]
        return width if self.fmt == "e4m3" else width // 2

    def scale_bytes(self, width: int) -> int:
        if not self.sf_kind:
            return 0
        return width // self.group_of(width) * (4 if self.sf_kind == "f32" else 1)

    def entry_bytes(self, width: int) -> int:
        """Bytes of one entry: 528 for v41, 288 for v41_fp4 at 512 values; 68 for index_fp4 at 128."""
        return self.data_bytes(width) + self.scale_bytes(width)


FORMATS: Mapping[str, CacheFormat] = {
    f.name: f
    for f in (
        CacheFormat("v41", "e4m3", 32, "ue8m0", False),
        CacheFormat("v41_fp4", "e2m1", 16, "e4m3", False),
        CacheFormat("index_fp4", "e2m1", 32, "ue8m0", True),
        CacheFormat("index_mxfp8", "e4m3", 32, "ue8m0", True),
        CacheFormat("index_fp8", "e4m3", 0, "f32", True),
        CacheFormat("bf16", "raw", 0, "", False, "bf16"),
        CacheFormat("f32", "raw", 0, "", False, "f32"),
    )
}
KV_FORMATS = ("v41", "v41_fp4", "bf16", "f32")
INDEX_FORMATS = ("index_fp4", "index_mxfp8", "index_fp8", "bf16", "f32")


def lookup(name: str) -> CacheFormat:
    """The format called ``name``. Raises UnsupportedFormat."""
    found = FORMATS.get(name)
    if found is None:
        raise UnsupportedFormat(
            f"cache format '{name}' is not known",
            reason=f"known: {', '.join(FORMATS)}; mixed layouts of older models (584, 592, 656 bytes) are not read",
            remedy="choose one of the known formats",
            details={"format": name, "offered": sorted(FORMATS)},
        )
    return found
