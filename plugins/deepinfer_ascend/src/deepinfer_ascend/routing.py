"""Tokens sorted by expert (``moe.dispatch``), with what the grouped products need to know of them."""

from __future__ import annotations

from typing import Any

from attrs import frozen
from torch import Tensor


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
