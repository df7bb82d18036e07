"""DeepSelect: the best entries of long rows.

Ties at the last place may go to other positions than ours take. A row with a NaN gives no entry worth keeping: an
index beyond the row, which becomes -1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

MAX_K = 4096
ROW_BYTES = 1024
"""A row begins at a multiple of it."""
_NONE = 2**31 - 1


def fits_topk(scores: Tensor, k: int, *, end: Tensor, want_values: bool = False, **_: Any) -> bool:
    """bf16 or fp32 rows of aligned length, at least as long as what is chosen."""
    return (
        scores.dtype in (torch.bfloat16, torch.float32)
        and scores.dim() == 2
        and scores.stride(1) == 1
        and scores.stride(0) * scores.element_size() % ROW_BYTES == 0
        and k <= min(MAX_K, scores.shape[1])
        and scores.shape[0] > 0
        and end.dtype == torch.int32
        and end.stride(0) == 1
        and not want_values
    )


def call_topk(
    select: Callable[..., Any],
    scores: Tensor,
    k: int,
    *,
    end: Tensor,
    offset: Tensor | None = None,
    want_values: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """``index.topk`` through ``topk``: positions ascending, entries of -inf taken out, the rest filled with -1."""
    values, found = select(
        scores,
        k,
        sorted=False,
        end=end,
        indices_type=torch.int32,
        sorted_index=True,
        idx_oob_fill_value=_NONE,
        value_oob_fill_value=float("-inf"),
        return_value=True,
        abort_when_nan_found=False,
    )
    lost = (values == float("-inf")) | (found >= scores.shape[1])
    chosen = found.masked_fill(lost, _NONE).sort(dim=1).values
    moved = chosen if offset is None else chosen + offset.unsqueeze(1)
    result = torch.where(chosen == _NONE, -1, moved)
    return result if out is None else out.copy_(result)
