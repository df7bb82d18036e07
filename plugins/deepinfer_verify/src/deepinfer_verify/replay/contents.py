"""Caches that hold what was stored, not its numbers: a value that stands for a position and all tokens up to it.

A step stores and reads through its arrays, so a wrong slot, a window that begins elsewhere, a key of another request or
one that was never computed is another value than the rule's.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.int64]
NOTHING = -1
"""What a unit holds that nobody wrote."""
UNUSED = -2
"""What a row stores that nobody may read: the decoder half of rows in front of the kept ones."""


class Chain:
    """The values of one sequence's positions, for tokens that only become more."""

    def __init__(self) -> None:
        self._crcs: list[int] = []
        self._array = np.empty(0, np.int64)

    def of(self, tokens: Sequence[int], drafts: Sequence[int] = ()) -> Values:
        """One for each position of ``tokens``, and of ``drafts`` behind them."""
        if len(self._crcs) < len(tokens):
            self._crcs = _extended(self._crcs, tokens[len(self._crcs) :])
            self._array = np.array(self._crcs, np.int64)
        known = self._array[: len(tokens)]
        return np.array(_extended(self._crcs[: len(tokens)], drafts), np.int64) if drafts else known


def _extended(crcs: list[int], tokens: Sequence[int]) -> list[int]:
    out = list(crcs)
    for token in tokens:
        out.append(zlib.crc32(int(token).to_bytes(4, "little"), out[-1] if out else 0))
    return out


def key_values(shared: Values, ratio: int) -> Values:
    """Of each compressed key of ``ratio``: that of its last position."""
    return shared[ratio - 1 :: ratio]


def empty(size: int) -> Values:
    return np.full(size, NOTHING, np.int64)


def gather(cache: Values, segments: npt.NDArray[np.int32], unit: int, size: int) -> Values:
    """``size`` rows, copied as the load segments ``(unit id, begin, end, destination)`` say; unit -1 is zeros."""
    out = empty(size)
    for ident, begin, end, target in segments.tolist():
        if ident >= 0:
            out[target : target + end - begin] = cache[ident * unit + begin : ident * unit + end]
    return out


def shown(values: Values, known: Values) -> str:
    """Values as runs of the positions of ``known`` that they stand for, for a reader: ``3..7, nothing``."""
    places = {int(value): at for at, value in enumerate(known.tolist())}
    runs: list[list[int | str]] = []
    for value in values.tolist():
        at = places.get(value)
        if at is None:
            name = {NOTHING: "nothing", UNUSED: "a row that nobody may read"}.get(value, "another's")
            if not runs or runs[-1] != [name]:
                runs.append([name])
        elif runs and isinstance(runs[-1][-1], int) and runs[-1][-1] == at - 1:
            runs[-1] = [runs[-1][0], at]
        else:
            runs.append([at])
    return ", ".join("..".join(map(str, run)) for run in runs) or "empty"
