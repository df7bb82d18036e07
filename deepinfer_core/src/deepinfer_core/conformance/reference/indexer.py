"""Index scores, selection and candidates, one row after the other (``spec/model.md`` 2.7, ``spec/kernels.md`` 2.4)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

BF16_MAX = float(torch.finfo(torch.bfloat16).max)


def scores(q: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """``q`` ``[h, d]``, ``weights`` ``[h]``, ``keys`` ``[n, d]`` -> fp64 ``[n]``: sum over heads of relu(q.k) * w."""
    products = (keys.double() @ q.double().T).clamp(min=0)
    return (products * weights.double()).sum(1)


def in_candidates(column: int, candidates: Sequence[int], block: int) -> bool:
    return column // block in [c for c in candidates if c >= 0]


def topk(values: Sequence[float], k: int, end: int) -> list[int]:
    """Columns of the best ``k`` before ``end`` by (value descending, column ascending), ascending, -1 behind.

    -inf and NaN are never chosen.
    """
    open_ = [c for c, v in enumerate(values[: max(end, 0)]) if v > -math.inf]
    best = sorted(open_, key=lambda c: (-values[c], c))[:k]
    return sorted(best) + [-1] * (k - len(best))


def block_max(values: Sequence[float], valid: int, block: int) -> tuple[list[float], int]:
    """Largest visible value of each block, no larger than the largest finite bf16; +inf for the newest visible block.

    Also the number of blocks that have a visible entry.
    """
    best = []
    for begin in range(0, len(values), block):
        visible = [float(v) for v in values[begin : min(begin + block, valid)]]
        best.append(min(max(visible, default=-math.inf), BF16_MAX))
    count = -(-valid // block)
    if count:
        best[count - 1] = math.inf
    return best, count


def restore(compact: Sequence[int], candidates: Sequence[int], block: int, offset: int = 0) -> list[int]:
    """Position i of the candidate blocks laid end to end -> position among all entries; -1 where there is none."""
    out = []
    for i in compact:
        which = candidates[i // block] if 0 <= i < len(candidates) * block else -1
        out.append(which * block + i % block + offset if which >= 0 else -1)
    return out
