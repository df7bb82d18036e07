"""Contract records over the core's memory: arrays are made once for each ring slot and sliced again only on a change.

The C side writes one struct; its ``di_view`` members say where the arrays of this call lie. ``di_layouts`` says which
slot of the ring has them, and changes a number when a view of that slot does. A steady step looks at that number only,
and makes no array at all; a step of another size slices the arrays that are there. Views and scalars are unpacked from
the struct's bytes: reading them member by member takes several times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from attrs import define, field

from deepinfer_contracts import DType, Record, ViewFlags
from deepinfer_native.library import ffi

Array = npt.NDArray[Any]
R = TypeVar("R", bound=Record)

DTYPES: dict[int, np.dtype[Any]] = {
    int(DType.BOOL): np.dtype(np.bool_),
    int(DType.U8): np.dtype(np.uint8),
    int(DType.I8): np.dtype(np.int8),
    int(DType.U16): np.dtype(np.uint16),
    int(DType.I16): np.dtype(np.int16),
    int(DType.U32): np.dtype(np.uint32),
    int(DType.I32): np.dtype(np.int32),
    int(DType.U64): np.dtype(np.uint64),
    int(DType.I64): np.dtype(np.int64),
    int(DType.F32): np.dtype(np.float32),
    int(DType.F64): np.dtype(np.float64),
}
VIEW = ffi.typeof("di_view")
VIEW_BYTES = ffi.sizeof("di_view")
# data, dtype, ndim, shape[4], flags; strides and space are not needed here
VIEW_LAYOUT = Struct("=Qii4q36xI")
PRESENT = int(ViewFlags.PRESENT)


def owned_buffer(data: Any, nbytes: int, owner: object) -> Any:
    """A buffer over C memory that keeps ``owner`` alive as long as an array uses it."""

    def hold(_pointer: Any, _owner: object = owner) -> None:
        return None

    return ffi.buffer(ffi.gc(ffi.cast("char *", data), hold), nbytes)


@define(eq=False)
class Member:
    """One field of a record: where it lies in the struct, and whether it is one value or several."""

    name: str
    path: tuple[str, ...]
    offset: int
    count: int  # 0 = not an array of C values
    is_view: bool
    ctype: str = ""  # of a scalar
    keys: tuple[tuple[str, int], ...] = ()  # of its arrays, in `Slot.arrays`


def members_of(struct: Any, prefix: tuple[str, ...] = (), base: int = 0) -> list[Member]:
    """The fields of a struct in order, those of an embedded ``base`` record first."""
    out: list[Member] = []
    for name, info in ffi.typeof(struct).fields if isinstance(struct, str) else struct.fields:
        kind, at = info.type, base + info.offset
        if name == "base":
            out += members_of(kind, (*prefix, name), at)
        elif name in ("struct_size", "chain") or name.startswith("pad_"):
            continue
        elif kind.kind == "array":
            keys = tuple((name, i) for i in range(kind.length))
            out.append(Member(name, (*prefix, name), at, kind.length, kind.item is VIEW, keys=keys))
        else:
            out.append(Member(name, (*prefix, name), at, 0, kind is VIEW, kind.cname, ((name, 0),)))
    return out


Place = tuple[int, int, Member]  # where the views of a member begin and end in their run


def runs_of(members: list[Member]) -> list[tuple[int, int, list[Place]]]:
    """(begin, end, places) of stretches of the struct that hold nothing but views."""
    out: list[tuple[int, int, list[Place]]] = []
    for m in members:
        if not m.is_view:
            continue
        if not out or out[-1][1] != m.offset:
            out.append((m.offset, m.offset, []))
        begin, _, places = out[-1]
        end = m.offset + VIEW_BYTES * len(m.keys)
        out[-1] = (begin, end, [*places, (m.offset - begin, end - begin, m)])
    return out


# C type of a scalar field: its code in `struct`.
CODES = {
    "uint8_t": "B",
    "int8_t": "b",
    "uint16_t": "H",
    "int16_t": "h",
    "uint32_t": "I",
    "int32_t": "i",
    "uint64_t": "Q",
    "int64_t": "q",
    "float": "f",
    "double": "d",
}


def scalars_of(struct: str, members: list[Member]) -> tuple[tuple[str, ...], Struct]:
    """(names, format) of the fields that are one number each, read in one go."""
    names, text, at = [], "=", 0
    for m in members:
        if m.is_view or m.count:
            continue
        code = CODES[m.ctype]
        text += f"{m.offset - at}x{code}"
        at = m.offset + Struct("=" + code).size
        names.append(m.name)
    return tuple(names), Struct(text)


def assigner(names: tuple[str, ...]) -> Callable[[object, tuple[Any, ...]], None]:
    """A function that assigns values to attributes. Written out, as attrs writes ``__init__``: a loop takes longer than
    all the rest of a step of one request."""
    made: dict[str, Any] = {}
    exec(f"def assign(r, values):\n    {''.join(f'r.{n}, ' for n in names) or '()'} = values", made)
    function: Callable[[object, tuple[Any, ...]], None] = made["assign"]
    return function


@define(eq=False)
class Slot(Generic[R]):
    """What Python keeps of one ring slot."""

    record: R
    raw: list[bytes]
    version: int = 0
    arrays: dict[tuple[str, int], tuple[int, int, Array]] = field(factory=dict)  # address, elements, flat array


class RecordReader(Generic[R]):
    """Reads one kind of record after the C side wrote ``struct``."""

    def __init__(self, struct: str, make: type[R], kind: str, ratios: tuple[int, ...], layouts: Any) -> None:
        """``layouts``: ``di_layouts *`` of the core, which has ``kind``; it is read after a call that succeeded."""
        self.struct = ffi.new(f"{struct} *")
        self._make = make
        self._ratios = ratios
        members = members_of(struct)
        self._runs = runs_of(members)
        names, layout = scalars_of(struct, members)
        self._unpack, self._assign = layout.unpack_from, assigner(names)
        self._keyed = [m.name for m in members if not m.is_view and m.count]
        self._buffer = ffi.buffer(self.struct)
        self._layouts = ffi.buffer(layouts, ffi.sizeof("di_layouts"))
        self._where = Struct(f"={ffi.offsetof('di_layouts', kind)}xiI").unpack_from
        self._slots: dict[int, Slot[R]] = {}

    def read(self, owner: object) -> R:
        """The record of the call that just returned; its arrays keep ``owner``, whose memory they show."""
        index, version = self._where(self._layouts)
        slot = self._slots.get(index)
        if slot is None or slot.version != version:
            slot = self._look(index, version, owner)
        record = slot.record
        self._assign(record, self._unpack(self._buffer))
        return record

    def _look(self, index: int, version: int, owner: object) -> Slot[R]:
        """Compare all views of a slot with those that were there."""
        slot = self._slots.get(index)
        if slot is None:
            slot = self._slots[index] = Slot(self._make(), [b""] * len(self._runs))
        for i, (begin, end, places) in enumerate(self._runs):
            raw, before = self._buffer[begin:end], slot.raw[i]
            if raw != before:
                slot.raw[i] = raw
                self._renew(slot, places, raw, before, owner)
        for name in self._keyed:
            value = getattr(self.struct, name)
            setattr(slot.record, name, {r: int(value[i]) for i, r in enumerate(self._ratios)})
        slot.version = version
        return slot

    def _renew(self, slot: Slot[R], places: list[Place], raw: bytes, before: bytes, owner: object) -> None:
        """Set the members whose views changed. A step of another size changes most of them, so the usual one, a longer
        or shorter stretch of an array that is there, is done in place."""
        record, arrays, unpack = slot.record, slot.arrays, VIEW_LAYOUT.unpack_from
        for at, stop, m in places:
            if raw[at:stop] == before[at:stop]:
                continue
            if not m.count:
                address, _, ndim, count, _, _, _, flags = unpack(raw, at)
                known = arrays.get(m.keys[0])
                if (
                    known is not None
                    and ndim == 1
                    and known[0] == address
                    and 0 < count <= known[1]
                    and flags & PRESENT
                ):
                    setattr(record, m.name, known[2][:count])
                    continue
            setattr(record, m.name, self._array(slot, m, raw, at, owner))

    def _array(self, slot: Slot[R], m: Member, raw: bytes, at: int, owner: object) -> Any:
        if not m.count:
            return self._one(slot, m.keys[0], VIEW_LAYOUT.unpack_from(raw, at), owner)
        found = [
            self._one(slot, key, VIEW_LAYOUT.unpack_from(raw, at + VIEW_BYTES * i), owner)
            for i, key in enumerate(m.keys)
        ]
        if m.name.startswith("grammar_"):
            return None if all(a is None for a in found) else found
        return {r: found[i] for i, r in enumerate(self._ratios) if found[i] is not None} or None

    def _one(self, slot: Slot[R], key: tuple[str, int], view: tuple[int, ...], owner: object) -> Array | None:
        address, code, ndim, count, *extents, flags = view
        if not flags & PRESENT:
            return None
        for extent in extents[: ndim - 1]:
            count *= extent
        if count == 0:
            return np.empty(view[3 : 3 + ndim], DTYPES[code])
        known = slot.arrays.get(key)
        if known is None or known[0] != address or known[1] < count:
            dtype = DTYPES[code]
            flat = np.frombuffer(owned_buffer(ffi.cast("char *", address), count * dtype.itemsize, owner), dtype)
            known = slot.arrays[key] = (address, count, flat)
        flat = known[2][:count]
        return flat if ndim == 1 else flat.reshape(view[3 : 3 + ndim])

    def close(self) -> None:
        """Forget every array, so that the core's memory can go."""
        self._slots.clear()
