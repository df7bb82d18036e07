"""Records as C structs: fills a cffi struct from an attrs record, without copying the arrays.

For compiled plugins, tests and recorded vectors; the native core keeps its own rings. Field names are the same on both
sides, so nothing here knows a record.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs
import numpy as np

from deepinfer_contracts._chains import CONTRACTS, DTYPES
from deepinfer_contracts._enums import DType, Space, ViewFlags
from deepinfer_contracts._record import Record
from deepinfer_contracts._records import Limits

_CODES = {np.dtype(DTYPES[d.name.lower()][0]): int(d) for d in DType}


def fill_view(ffi: Any, view: Any, array: np.ndarray[Any, Any] | None, keep: list[object]) -> None:
    """Let ``view`` (a `di_view`) show a host array; None makes it absent. ``keep`` receives what must stay alive."""
    view.flags, view.data = 0, ffi.NULL
    if array is None:
        return
    keep.append(array)
    view.flags = int(ViewFlags.PRESENT)
    view.space = int(Space.HOST)
    view.dtype = _CODES[array.dtype]
    view.ndim = array.ndim
    view.data = ffi.cast("void *", array.ctypes.data)
    for d in range(array.ndim):
        view.shape[d] = array.shape[d]
        view.stride[d] = array.strides[d] // array.itemsize


def limits_to_c(ffi: Any, limits: Limits, scratch_bytes: int = 0, step_id: int = 0) -> tuple[Any, list[object]]:
    """(`di_limits *`, what must stay alive). ``scratch_bytes``: memory for uniqueness at level FULL."""
    out = ffi.new("di_limits *")
    keep: list[object] = [out]
    for a in attrs.fields(Limits):
        value = getattr(limits, a.name)
        if isinstance(value, tuple):
            setattr(out, f"num_{a.name}", len(value))
            for k, v in enumerate(value):
                getattr(out, a.name)[k] = v
        else:
            setattr(out, a.name, int(value))
    out.step_id = step_id
    if scratch_bytes:
        scratch = ffi.new("uint64_t[]", (scratch_bytes + 7) // 8)
        keep.append(scratch)
        out.scratch, out.scratch_bytes = scratch, scratch_bytes
    return out, keep


def record_to_c(ffi: Any, record: Record, limits: Limits) -> tuple[Any, list[object]]:
    """(`di_<record> *`, what must stay alive). A per-ratio array goes to the ratio's place in ``limits.ratios``."""
    info = CONTRACTS[record.CONTRACT]
    out = ffi.new(f"{info.struct} *")
    keep: list[object] = [out]
    own = {name for name, _ in ffi.typeof(info.struct).fields}
    envelope = out.base if "base" in own else out
    envelope.struct_size, envelope.chain = ffi.sizeof(info.struct), info.layout_hash
    for name, definition in info.fields[2:]:
        target = out if name in own else out.base
        value = getattr(record, name)
        if "[" in definition:
            member = getattr(target, name)
            if definition.endswith(("/ratio", "/draft_step")):
                for k, array in _entries(value, limits):
                    fill_view(ffi, member[k], array, keep)
            else:
                fill_view(ffi, member, value, keep)
        elif definition.endswith("/ratio"):
            for k, number in _entries(value, limits):
                getattr(target, name)[k] = number
        elif definition == "handle":
            setattr(target, name, 0)
        else:
            setattr(target, name, value)
    return out, keep


def _entries(value: Any, limits: Limits) -> Iterable[tuple[int, Any]]:
    if isinstance(value, dict):
        return [(limits.ratios.index(r), x) for r, x in value.items()]
    return list(enumerate(value or ()))
