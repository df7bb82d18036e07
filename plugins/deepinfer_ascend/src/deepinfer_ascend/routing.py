"""Tokens sorted by expert (``moe.dispatch``), and where their rows go in the grouped products."""

from __future__ import annotations

from typing import Any

import torch
from attrs import frozen
from torch import Tensor

SEGMENT = 128
"""Rows that a segment of the grouped products begins at a multiple of."""


@frozen(eq=False)
class Dispatched:
    """What the plain dispatch gives, and whether the rows were quantised: only such rows may be cast again.

    :ivar x: fp32 ``[M, H]``, the values of the rows. :ivar weight: fp32 ``[M]``.
    :ivar segments, expert, handle: as the plain op has them.
    :ivar is_scaled: the rows are values of FP8 codes.
    """

    x: Tensor
    weight: Tensor
    segments: Any
    handle: Any
    expert: Tensor | None
    is_scaled: bool


def aligned_places(group: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Where rows that are sorted by group go, int64 ``[M]``, and where each group's rows end, int32 ``[E]``.

    A segment begins at a multiple of 128, and one without rows ends where it begins. Rows of no group (``group`` E or
    more) come last, behind every segment.

    :param group: int64 ``[M]``, ascending. :param sizes: int64 ``[E]``, rows of each group.
    """
    count = len(sizes)
    whole = (sizes + SEGMENT - 1) // SEGMENT * SEGMENT
    begins = whole.cumsum(0) - whole
    before = sizes.cumsum(0) - sizes
    number = torch.arange(group.shape[0], device=group.device)
    known = group.clamp(max=count - 1)
    places = torch.where(group < count, begins[known] + number - before[known], whole.sum() + number - sizes.sum())
    return places, (begins + sizes).int()
