"""One pool of units (``spec/engine.md`` 3.2, 4.2): a FIFO of free ids, a list of least recent use, and a limbo."""

from __future__ import annotations

from collections import deque


class Pool:
    """Units ``1 .. size - 1``; 0 is null. ``size`` 0 = there is no such pool, and every slot of it is 0.

    ``registered`` units are offered by the prefix cache; one that nobody holds is ``cached`` instead of free, and taken
    only when no free one is left. ``on_evict`` is told of it.
    """

    def __init__(self, size: int, stream_ordered: bool):
        self.size = size
        self.stream_ordered = stream_ordered
        self.free = deque(range(1, size))
        self.cached: list[int] = []  # least recent use first
        self.registered: set[int] = set()
        self.ref: dict[int, int] = {}
        self.last_use: dict[int, int] = {}
        self.limbo: list[tuple[int, int]] = []  # (epoch, unit) in order of release
        self.done = 0
        self.evictions = 0
        self.on_evict = None

    @property
    def total(self) -> int:
        return max(self.size - 1, 0)

    @property
    def available(self) -> int:
        return len(self.free) + len(self.cached)

    @property
    def held(self) -> int:
        return len(self.ref)

    def has(self, n: int) -> bool:
        return self.size == 0 or n <= self.available

    def take(self, n: int = 1) -> list[int]:
        if n > self.available:
            raise AssertionError(f"{n} units wanted, {self.available} are free")
        units = []
        for _ in range(n):
            if self.free:
                unit = self.free.popleft()
            else:
                unit = self.cached.pop(0)
                self.registered.remove(unit)
                self.evictions += 1
                self.on_evict(unit)
            self.ref[unit] = 1
            units.append(unit)
        return units

    def take_one(self) -> int:
        return self.take()[0] if self.size else 0

    def share(self, unit: int) -> None:
        """Hold a unit once more: one that is held, or a registered one that nobody holds."""
        if unit not in self.ref:
            if unit not in self.registered:
                raise AssertionError(f"unit {unit} is neither held nor offered")
            if unit in self.cached:
                self.cached.remove(unit)
            else:
                self.limbo.remove((self.last_use[unit], unit))
        self.ref[unit] = self.ref.get(unit, 0) + 1

    def release(self, unit: int, epoch: int) -> None:
        """Drop one reference of a unit whose newest using step, as far as this owner knows, is ``epoch``."""
        if self.ref.get(unit, 0) < 1:
            raise AssertionError(f"unit {unit} is released but not held")
        self.last_use[unit] = max(self.last_use.get(unit, 0), epoch)
        self.ref[unit] -= 1
        if self.ref[unit]:
            return
        del self.ref[unit]
        if self.stream_ordered or self.last_use[unit] <= self.done:
            self.retire(unit)
        else:
            self.limbo.append((self.last_use[unit], unit))

    def retire(self, unit: int) -> None:
        """No step uses it any more."""
        (self.cached if unit in self.registered else self.free).append(unit)

    def unregister(self, unit: int) -> None:
        self.registered.discard(unit)
        if unit in self.cached:
            self.cached.remove(unit)
            self.free.append(unit)

    def complete(self, done: int) -> None:
        """Steps up to ``done`` are over: their units become free, oldest epoch first, each in order of release."""
        self.done = done
        over = [entry for entry in self.limbo if entry[0] <= done]
        self.limbo = [entry for entry in self.limbo if entry[0] > done]
        for _, unit in sorted(over, key=lambda entry: entry[0]):
            self.retire(unit)
