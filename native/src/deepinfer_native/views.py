"""Contract records over the core's memory: arrays are made once for each ring slot and sliced again only on a change.

The C side writes one struct; its ``di_view`` members say where the arrays of this call lie. ``di_layouts`` says which
slot of the ring has them, changes a number when a view of that slot does, and lists the words that differ. A steady
step looks at that number only, and makes no array at all; a step of another size slices the arrays that are there.
Views and scalars are unpacked from the struct's bytes: reading them member by member takes several times as long.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from attrs import define, field

from deepinfer_contracts import DType, Record, ViewFlags
from deepinfer_native.library import ffi
from deepinfer_native.members import VIEW_BYTES, Member, assigner, members_of, runs_of, scalars_of, words_of

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
# data, dtype, ndim, shape[4], flags; strides and space are not needed here
VIEW_LAYOUT = Struct("=Qii4q36xI")
CHANGED_BYTES = ffi.sizeof("di_layout") - ffi.offsetof("di_layout", "changed")
SHAPE_AT = ffi.offsetof("di_view", "shape")
EXTENT = Struct("=q").unpack_from
PRESENT = int(ViewFlags.PRESENT)


def owned_buffer(data: Any, nbytes: int, owner: object) -> Any:
    """A buffer over C memory that keeps ``owner`` alive as long as an array uses it."""

    def hold(_pointer: Any, _owner: object = owner) -> None:
        return None

    return ffi.buffer(ffi.gc(ffi.cast("char *", data), hold), nbytes)


@define(eq=False)
class Slot(Generic[R]):
    """What Python keeps of one ring slot."""

    record: R
    raw: list[bytes]
    version: int = 0
    is_raw: bool = True  # `raw` is what the record shows
    arrays: dict[tuple[str, int], tuple[int, int, Array]] = field(factory=dict)  # address, elements, flat array
    lengths: dict[int, Length] = field(factory=dict)  # by where the struct has the first extent


# A member that shows so many entries of an array: the record or the dictionary that has it, under which name, the most
# entries, and the array with those.
Length = tuple[Any, Any, int, Array]


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
        self._view_at = {at: m for m in members if m.is_view for at in words_of([m])}
        self._keyed_words = words_of([m for m in members if not m.is_view and m.count])
        self._buffer = ffi.buffer(self.struct)
        self._layouts = ffi.buffer(layouts, ffi.sizeof("di_layouts"))
        at = ffi.offsetof("di_layouts", kind)
        # Slot, version, how many words changed, and the first of them: often it is the only one.
        changed = ffi.offsetof("di_layout", "changed")
        self._where = Struct(f"={at}xiIi{changed - 12}xH").unpack_from
        at += changed
        self._changed = memoryview(self._layouts)[at : at + CHANGED_BYTES].cast("H")
        self._slots: dict[int, Slot[R]] = {}

    def read(self, owner: object) -> R:
        """The record of the call that just returned; its arrays keep ``owner``, whose memory they show."""
        index, version, changed, first = self._where(self._layouts)
        slot = self._slots.get(index)
        if slot is None or (slot.version != version and not self._renew(slot, version, changed, first, owner)):
            slot = self._look(index, version, owner)
        record = slot.record
        self._assign(record, self._unpack(self._buffer))
        return record

    def _renew(self, slot: Slot[R], version: int, changed: int, first: int, owner: object) -> bool:
        """Show other lengths of the arrays that are there, which is how steps of one kind differ, and look at what else
        changed: a table that grows does, every few steps. False where nobody says what changed, or a version was
        missed: then all of it has to be looked at."""
        if changed < 0 or slot.version + 1 != version:
            return False
        buffer, lengths, is_keyed, others = self._buffer, slot.lengths, False, {}
        slot.is_raw = False
        for at in (first,) if changed == 1 else self._changed[:changed].tolist():
            known = lengths.get(at)
            if known is None:
                member = self._view_at.get(at)
                if member is not None:
                    others[member.name] = member
                is_keyed = is_keyed or at in self._keyed_words
                continue
            target, name, most, whole = known
            count = EXTENT(buffer, at)[0]
            if not 0 <= count <= most:
                member = self._view_at[at]
                others[member.name] = member
            elif target.__class__ is dict:
                target[name] = whole[:count]
            else:
                setattr(target, name, whole[:count])
        for member in others.values():
            setattr(slot.record, member.name, self._array(slot, member, buffer, member.offset, owner))
        if is_keyed:
            self._read_keyed(slot.record)
        slot.version = version
        return True

    def _look(self, index: int, version: int, owner: object) -> Slot[R]:
        """Compare all views of a slot with those that were there."""
        slot = self._slots.get(index)
        if slot is None:
            slot = self._slots[index] = Slot(self._make(), [b""] * len(self._runs))
        for i, (begin, end, places) in enumerate(self._runs):
            raw, before = self._buffer[begin:end], slot.raw[i] if slot.is_raw else b""
            if raw != before:
                slot.raw[i] = raw
                for at, stop, m in places:
                    if raw[at:stop] != before[at:stop]:
                        setattr(slot.record, m.name, self._array(slot, m, raw, at, owner))
        self._read_keyed(slot.record)
        slot.version, slot.is_raw = version, True
        return slot

    def _read_keyed(self, record: R) -> None:
        for name in self._keyed:
            value = getattr(self.struct, name)
            setattr(record, name, {r: int(value[i]) for i, r in enumerate(self._ratios)})

    def _array(self, slot: Slot[R], m: Member, raw: bytes, at: int, owner: object) -> Any:
        views = [VIEW_LAYOUT.unpack_from(raw, at + VIEW_BYTES * i) for i in range(len(m.keys))]
        found = [self._one(slot, key, view, owner) for key, view in zip(m.keys, views, strict=True)]
        if m.name.startswith("grammar_"):
            return None if all(a is None for a in found) else found
        if not m.count:
            self._note(slot, m, 0, slot.record, m.name, found[0])
            return found[0]
        by_ratio = {r: array for r, array in zip(self._ratios, found, strict=False) if array is not None}
        for i, r in enumerate(self._ratios):
            self._note(slot, m, i, by_ratio, r, found[i])
        return by_ratio or None

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

    def _note(self, slot: Slot[R], m: Member, i: int, target: Any, name: Any, array: Array | None) -> None:
        """Remember how a later step shows more or less of an array."""
        at = m.offset + VIEW_BYTES * i + SHAPE_AT
        slot.lengths.pop(at, None)
        if array is None or array.size == 0:
            return
        flat, rest = slot.arrays[m.keys[i]][2], array.shape[1:]
        whole = flat if not rest else flat[: flat.size // array[0].size * array[0].size].reshape(-1, *rest)
        slot.lengths[at] = (target, name, len(whole), whole)

    def close(self) -> None:
        """Forget every array, so that the core's memory can go."""
        self._slots.clear()
