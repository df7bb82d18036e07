"""DeepSelect: the best entries of long rows."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_ascend.contracts import check, misfit
from deepinfer_ascend.plain import plain_op

ROW_BYTES, MAX_K = 1024, 4096


def topk(
    input: Tensor,
    topk: int,
    *,
    sorted: bool = True,
    end: Tensor | None = None,
    indices_type: torch.dtype = torch.int64,
    sorted_index: bool = False,
    idx_oob_fill_value: int = -1,
    return_value: bool = True,
    abort_when_nan_found: bool = True,
) -> tuple[None, Tensor]:
    """int32 positions of the best ``topk`` of each row of bf16 ``[T, n]``, ascending; the build for Ascend gives no
    values."""
    check("topk", "input", input, torch.bfloat16, None, None)
    if input.stride(0) * input.element_size() % ROW_BYTES:
        raise misfit("topk", "input", f"rows that begin at multiples of {ROW_BYTES} bytes", input.stride())
    if end is None or return_value or sorted or not sorted_index or indices_type != torch.int32:
        given = (indices_type, return_value, sorted, sorted_index, end is None)
        raise misfit("topk", "options", "int32 positions, ascending, without values, with end", given)
    check("topk", "end", end, torch.int32, input.shape[0])
    if not 1 <= topk <= min(MAX_K, input.shape[1]):
        raise misfit("topk", "topk", f"1 to {min(MAX_K, input.shape[1])}", topk)
    found = plain_op("index.topk")(input, topk, end=end)
    return None, found.masked_fill(found < 0, idx_oob_fill_value)
