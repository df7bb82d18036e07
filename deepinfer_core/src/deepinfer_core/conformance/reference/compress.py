"""The compressor from whole histories, without a ring (``spec/model.md`` 2.6, ``spec/kernels.md`` 2.2).

A sequence is two lists of rows by position. An entry is computed from them alone, so whatever a ring forgets, mixes up
or overwrites too early shows as a difference.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


def entry(scores: npt.ArrayLike, latents: npt.ArrayLike) -> F64:
    """``[ratio, d]`` each -> ``[d]``: softmax over the rows of each channel by itself, weighted sum."""
    s, v = np.asarray(scores, np.float64), np.asarray(latents, np.float64)
    e = np.exp(s - s.max(axis=0))
    total: F64 = (e * v).sum(axis=0) / e.sum(axis=0)
    return total


def completed(start: int, end: int, ratio: int) -> range:
    """Entries whose last token lies in ``[start, end)``."""
    return range(start // ratio, end // ratio)


def reserved(start: int, end: int, ratio: int) -> int:
    """Output rows of a chunk: its entries, and one that stays zero if there are none."""
    return max(1, len(completed(start, end, ratio)))


def written(ring: Any, rows: Iterable[Any], first: int) -> None:
    """Put ``rows`` ``[q, 2, d]`` of positions ``first ..`` into ``ring`` ``[size, 2, d]``, in order."""
    for i, row in enumerate(rows):
        ring[(first + i) % len(ring)] = row


def copied(src: Any, dst: Any, last_hit: int) -> None:
    """The last positions before ``last_hit`` that both rings hold."""
    for position in range(max(0, last_hit - min(len(src), len(dst))), last_hit):
        dst[position % len(dst)] = src[position % len(src)]
