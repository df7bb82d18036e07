"""When the window that counts may open: step times have stopped falling."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from attrs import frozen


@frozen
class SteadyRule:
    """Blocks of ``block`` values; steady once medians of two neighbours differ by at most ``within`` of the earlier.

    A block that is faster by more says that something still warms up; one that is slower by more, that something else
    came. After ``most`` values the window opens all the same, and the report says that it was not steady.
    """

    block: int = 8
    within: float = 0.05
    most: int = 48

    @property
    def text(self) -> str:
        return (
            f"medians of two successive blocks of {self.block} differ by at most {self.within:.0%}; "
            f"at the latest after {self.most}"
        )

    def holds(self, values: Sequence[float]) -> bool:
        """Whether the last two whole blocks of ``values`` agree."""
        whole = len(values) // self.block * self.block
        if whole < 2 * self.block:
            return False
        earlier = statistics.median(values[whole - 2 * self.block : whole - self.block])
        later = statistics.median(values[whole - self.block : whole])
        return abs(later - earlier) <= self.within * earlier


@frozen
class Settling:
    """What happened before the window."""

    count: int
    """Values until the window opened; none of them counts."""
    is_steady: bool
    """Whether the rule held; else the window opened because there had been enough."""


def settle(rule: SteadyRule, take: Callable[[], float]) -> Settling:
    """Call ``take``, which gives one value (seconds) each time, until the rule holds or there are enough."""
    values: list[float] = []
    while len(values) < rule.most:
        values.append(take())
        if len(values) % rule.block == 0 and rule.holds(values):
            return Settling(len(values), True)
    return Settling(len(values), False)
