"""Event batches as Python sees them: arrays over an arena that the core will use again (``spec/engine.md`` 4.6)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from struct import Struct
from sys import getrefcount
from typing import Any

import numpy as np
import numpy.typing as npt

from deepinfer_contracts import CONTRACTS, EventBatch
from deepinfer_contracts import DTYPES as DTYPES_BY_NAME
from deepinfer_native.errors import StaleBatchError
from deepinfer_native.library import check, ffi, lib
from deepinfer_native.members import written_out
from deepinfer_native.views import DTYPES, PRESENT, owned_buffer

Array = npt.NDArray[Any]

# Fields with one entry for each event.
PER_EVENT = {
    name: np.dtype(DTYPES_BY_NAME[definition.removesuffix("[X]")][0])
    for name, definition in CONTRACTS["EventBatch"].fields
    if definition.endswith("[X]")
}
# Of `di_event_info`, from its start: arena, step_id, count, has_more, next; the rest is asked for once an arena.
INFO = "=i28xQiii"
memmove, BATCH_BYTES = ffi.memmove, ffi.sizeof("di_event_batch")
# Alternatives lie in memory of their own that may move when the arena is used again: readers get copies.
COPIED = ("top_ids", "top_logprobs", "prompt_logprobs")


Columns = dict[str, Array]
Slicer = Callable[[Any, Columns, Columns, int], None]


@functools.cache
def slicer(names: tuple[str, ...]) -> Slicer:
    """A function that gives a batch, and ``shown``, the first ``count`` entries of the columns ``names``."""
    lines = ["def slice_columns(view, shown, whole, count):", "    cut = slice(count)"]
    lines += [f"    view.{name} = shown[{name!r}] = whole[{name!r}][cut]" for name in names]
    function: Slicer = written_out("slice_columns", lines)
    return function


class Arena:
    """One arena of the core's ring and the arrays over it.

    Every exported array holds a reference to ``memory`` (numpy keeps the owner of a view as its base), so reference
    counts say whether somebody still reads the arena.
    """

    def __init__(self, index: int, data: Any, nbytes: int, owner: object) -> None:
        self.index = index
        self.pinned = False
        self.start = int(ffi.cast("uintptr_t", data))
        self.memory = np.frombuffer(owned_buffer(data, nbytes, owner), np.uint8)
        # A field lies at the same place in every batch: one array for each, to the end of the memory.
        self.whole: Columns = {}
        # Columns that the newest batch keeps, each referred to from here and from that batch.
        self.shown: Columns = {}
        self.slice_shown = slicer(())

    def show(self, name: str, column: Array) -> None:
        """The newest batch keeps that column."""
        self.shown[name] = column
        self.slice_shown = slicer(tuple(sorted(self.shown)))  # in whatever order they were asked for

    def hide(self) -> None:
        """The newest batch keeps none."""
        self.shown.clear()
        self.slice_shown = slicer(())

    def array(self, name: str, view: Any) -> Array:
        """The field as the batch ``view`` belongs to has it."""
        whole = self.whole.get(name)
        if whole is None:
            dtype, at = DTYPES[view.dtype], int(ffi.cast("uintptr_t", view.data)) - self.start
            size = (self.memory.size - at) // dtype.itemsize
            whole = self.whole[name] = np.ndarray(size, dtype, self.memory, at)
        return whole[: view.shape[0]]

    def learn(self, batch: Any) -> None:
        """Make the whole arrays of the fields with one entry for each event; slices of them are cheap."""
        for name in PER_EVENT:
            self.array(name, getattr(batch, name))

    def is_exported(self) -> bool:
        """Whether a slice is alive that is not a column of the newest batch, or such a column is referred to from
        elsewhere. The references counted besides: this object's own, and the call's argument."""
        shown = self.shown
        return getrefcount(self.memory) > 2 + len(self.whole) + len(shown) or (
            sum(map(getrefcount, shown.values())) > COLUMN_REFERENCES * len(shown)
        )


# Of a column that nobody else has: as `Arena.is_exported` counts, and that of the batch.
COLUMN_REFERENCES = sum(map(getrefcount, [np.empty(0)])) + 1


class EventRing:
    """The arenas of a core and who reads them."""

    def __init__(self) -> None:
        self.batch = ffi.new("di_event_batch *")
        self.info = ffi.new("di_event_info *")
        self._unpack = Struct(INFO).unpack_from
        self._buffer = ffi.buffer(self.info)
        self._arenas: dict[int, Arena] = {}
        self._views: dict[int, EventView] = {}  # the newest batch of each arena
        self._next = -1  # where the next batch goes
        self._pinned = 0

    def sync_pins(self, core: Any) -> None:
        """Tell the core which arenas still have arrays alive, before it picks the next one."""
        arena = self._arenas.get(self._next)
        if not self._pinned and arena is not None and not arena.is_exported():
            return  # the usual case: the arena that comes next is read by nobody
        for arena in tuple(self._arenas.values()):
            exported = arena.is_exported()
            if exported != arena.pinned:
                check(lib.di_event_pin(core, arena.index, exported))
                arena.pinned = exported
                self._pinned += 1 if exported else -1

    def view(self, core: Any) -> EventView:
        """The batch that the call which filled ``batch`` and ``info`` made."""
        index, step_id, count, has_more, self._next = self._unpack(self._buffer)
        if index < 0:
            return EventView(None, 0, self.batch.step_id)
        view = self._views.get(index)
        if view is not None and getrefcount(view) == 3:
            # Nobody else has the batch that was here: a batch of as many events shows the same arrays.
            view._begin(count, step_id)
            if has_more:
                view._keep(self.batch)
            return view
        arena = self._arenas.get(index)
        if arena is None:
            arena = self._arenas[index] = Arena(index, self.info.data, self.info.bytes, core)
            arena.learn(self.batch)
        if view is not None:
            view._recycle(step_id)
        view = self._views[index] = EventView(arena, count, step_id)
        if has_more:
            view._keep(self.batch)
        return view

    def close(self) -> None:
        """Forget every array, so that the core's memory can go."""
        self._arenas.clear()
        self._views.clear()


class EventView:
    """One batch: the fields of `EventBatch`, each made when it is asked for first.

    Valid until the arena is used again, ``depth + 1`` batches later; then reading raises StaleBatchError. An arena that
    still has an array alive is not used again: the ring grows instead, so a kept array never changes. `copy` gives a
    record of its own.
    """

    __slots__ = ("_arena", "_more", "_released", "_stale", "_struct", "count", "step_id", *PER_EVENT)

    def __init__(self, arena: Arena | None, count: int, step_id: int) -> None:
        self._arena = arena
        self._struct: Any = None  # the C record, if the batch has more than one entry for each event
        self._more: Any = None  # where it is, once there was one
        self._stale = ""  # why it cannot be read any more
        self._released = False
        self.count: int = count
        self.step_id: int = step_id

    def __len__(self) -> int:
        return self.count

    def __getattr__(self, name: str) -> Any:
        """A field that was not asked for before."""
        if name not in EventBatch.FIELDS:
            raise AttributeError(f"EventBatch has no field {name}")
        if self._stale:
            raise StaleBatchError(self._stale, contract="EventBatch")
        arena = self._arena
        if name in PER_EVENT:
            column = np.empty(0, PER_EVENT[name]) if arena is None else arena.whole[name][: self.count]
            setattr(self, name, column)
            if arena is not None:
                arena.show(name, column)
            return column
        if self._struct is None or arena is None:
            return None
        view = getattr(self._struct, name)
        if not view.flags & PRESENT:
            return None
        return copied(view) if name in COPIED else arena.array(name, view)

    def _keep(self, batch: Any) -> None:
        """Keep the C record, which the next call writes again."""
        if self._more is None:
            self._more = ffi.new("di_event_batch *")
        memmove(self._more, batch, BATCH_BYTES)
        self._struct = self._more

    def _begin(self, count: int, step_id: int) -> None:
        """Become the arena's next batch. Columns of as many events are where they were, and who read some of the batch
        before reads the same ones of this."""
        if count != self.count:
            self.count = count
            arena = self._arena
            if arena is not None:
                arena.slice_shown(self, arena.shown, arena.whole, count)
        self._stale = ""
        self._released = False
        self.step_id = step_id
        self._struct = None

    def _forget(self) -> None:
        """Drop the columns."""
        if self._arena is not None:
            for name in self._arena.shown:
                delattr(self, name)
            self._arena.hide()

    def _recycle(self, step_id: int) -> None:
        """The arena goes to a later batch while somebody has this one."""
        self._forget()
        self._arena = None
        self._stale = self._stale or (
            f"batch of step {self.step_id} was recycled at step {step_id}; copy() what must outlive later batches"
        )

    @property
    def is_stale(self) -> bool:
        """Whether the arena went to a later batch, or the batch was released."""
        return bool(self._stale)

    def copy(self) -> EventBatch:
        """The batch as a record with arrays of its own."""
        out = EventBatch()
        for name in EventBatch.FIELDS:
            value = self.step_id if name == "step_id" else getattr(self, name)
            setattr(out, name, value.copy() if isinstance(value, np.ndarray) else value)
        return out

    def validate(self, limits: Any, level: int = 1) -> None:
        """`EventBatch.validate` of a copy. Raises ContractViolation."""
        self.copy().validate(limits, level)

    def release(self) -> bool:
        """Say that the batch is no longer read. Optional and idempotent; False when it was released already."""
        was = self._released
        if not was:
            self._forget()
            self._released = True
            self._stale = f"batch of step {self.step_id} was released"
        return not was


def copied(view: Any) -> Array:
    """An array of its own with the values of a view."""
    dtype, count = DTYPES[view.dtype], view.shape[0]
    return np.frombuffer(bytes(ffi.buffer(view.data, count * dtype.itemsize)), dtype).copy()
