"""One pool of units (``spec/engine.md`` 3.2, 4.2): a FIFO of free ids, and a limbo of units a step may still use."""

from __future__ import annotations

from collections import deque


class Pool:
    """Units ``1 .. size - 1``; 0 is null. ``size`` 0 = there is no such pool, and every slot of it is 0."""

    def __init__(self, size: int, stream_ordered: bool):
        self.size = size
        self.stream_ordered = stream_ordered
        self.free = deque(range(1, size))
        self.ref: dict[int, int] = {}
        self.last_use: dict[int, int] = {}
        self.limbo: list[tuple[int, int]] = []  # (epoch, unit) in order of release
        self.done = 0

    @property
    def total(self) -> int:
        return max(self.size - 1, 0)

    @property
    def available(self) -> int:
        return len(self.free)

    @property
    def held(self) -> int:
        return len(self.ref)

    def has(self, n: int) -> bool:
        return self.size == 0 or n <= len(self.free)

    def take(self, n: int = 1) -> list[int]:
        if n > len(self.free):
            raise AssertionError(f"{n} units wanted, {len(self.free)} are free")
        units = [self.free.popleft() for _ in range(n)]
        for unit in units:
            self.ref[unit] = 1
        return units

    def take_one(self) -> int:
        return self.take()[0] if self.size else 0

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
            self.free.append(unit)
        else:
            self.limbo.append((self.last_use[unit], unit))

    def complete(self, done: int) -> None:
        """Steps up to ``done`` are over: their units become free, oldest epoch first, each in order of release."""
        self.done = done
        over = [entry for entry in self.limbo if entry[0] <= done]
        self.limbo = [entry for entry in self.limbo if entry[0] > done]
        self.free.extend(unit for _, unit in sorted(over, key=lambda entry: entry[0]))
