"""Event batches as Python sees them: arrays over an arena that the core will use again (``spec/engine.md`` 4.6)."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from deepinfer_contracts import EventBatch
from deepinfer_native.errors import StaleBatchError
from deepinfer_native.library import ffi
from deepinfer_native.views import DTYPES, PRESENT, owned_buffer

Array = npt.NDArray[Any]

# Alternatives lie in memory of their own that may move when the arena is used again: readers get copies.
COPIED = ("top_ids", "top_logprobs", "prompt_logprobs")


class Arena:
    """One arena of the core's ring and the arrays over it.

    Every exported array holds a reference to ``memory`` (numpy keeps the owner of a view as its base), so the reference
    count of that one object says whether somebody still reads the arena.
    """

    def __init__(self, index: int, data: Any, nbytes: int, owner: object) -> None:
        self.index = index
        self.generation = 0
        self.step_id = 0
        self.pinned = False
        self.start = int(ffi.cast("uintptr_t", data))
        self.memory = np.frombuffer(owned_buffer(data, nbytes, owner), np.uint8)
        self._places: dict[str, tuple[np.dtype[Any], int]] = {}  # a field lies at the same place in every batch

    def array(self, name: str, view: Any) -> Array:
        place = self._places.get(name)
        if place is None:
            at = int(ffi.cast("uintptr_t", view.data)) - self.start
            place = self._places[name] = DTYPES[view.dtype], at
        return np.ndarray(view.shape[0], place[0], self.memory, place[1])

    @property
    def is_exported(self) -> bool:
        """Whether an array over this arena is alive: references besides this object's own and the call's argument."""
        return sys.getrefcount(self.memory) > 2


class EventView:
    """One batch: the fields of `EventBatch`, each made when it is asked for.

    Valid until the arena is used again, ``depth + 1`` batches later; then reading raises StaleBatchError. An arena that
    still has an array alive is not used again: the ring grows instead, so a kept array never changes. `copy` gives a
    record of its own.
    """

    __slots__ = ("_arena", "_generation", "_released", "_struct", "count", "step_id")

    def __init__(self, struct: Any, arena: Arena | None) -> None:
        self._struct = struct
        self._arena = arena
        self._generation = arena.generation if arena else 0
        self._released = False
        self.count: int = int(struct.seq_uid.shape[0])
        self.step_id: int = int(struct.step_id)

    def __len__(self) -> int:
        return self.count

    def __getattr__(self, name: str) -> Any:
        if name not in EventBatch.FIELDS:
            raise AttributeError(f"EventBatch has no field {name}")
        self._check()
        view = getattr(self._struct, name)
        if not view.flags & PRESENT:
            return None
        if name in COPIED:
            return copied(view)
        if self._arena is None:
            return np.empty(0, DTYPES[view.dtype])
        return self._arena.array(name, view)

    @property
    def is_stale(self) -> bool:
        """Whether the arena went to a later batch, or the batch was released."""
        return self._released or (self._arena is not None and self._arena.generation != self._generation)

    def _check(self) -> None:
        if self._released:
            raise StaleBatchError(f"batch of step {self.step_id} was released", contract="EventBatch")
        if self._arena is not None and self._arena.generation != self._generation:
            raise StaleBatchError(
                f"batch of step {self.step_id} was recycled at step {self._arena.step_id}; "
                "copy() what must outlive later batches",
                contract="EventBatch",
            )

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
        self._released = True
        return not was


def copied(view: Any) -> Array:
    """An array of its own with the values of a view."""
    dtype, count = DTYPES[view.dtype], view.shape[0]
    return np.frombuffer(bytes(ffi.buffer(view.data, count * dtype.itemsize)), dtype).copy()
