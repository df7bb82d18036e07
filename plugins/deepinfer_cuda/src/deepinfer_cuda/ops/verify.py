"""Which drafts a decode step verifies, by confidences that only the device knows (``spec/engine.md`` 7.4)."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_cuda.fits import int32
from deepinfer_cuda.plain import plain_op
from deepinfer_cuda.tl.meta.verify import share_rows
from deepinfer_cuda.unproven import serves

MOST_DRAFTS = 8
MOST_REQUESTS = 4096
"""Above it sorting is less work than comparing all drafts with all."""


def verify_lengths(confidence: Tensor, remap: Tensor | None, budget: int) -> Tensor:
    """Rows of each request, int32 ``[N]``: the token to extend, and its drafts among the ``budget - N`` most certain.

    :param confidence: f32 ``[M, K]`` of the step before, conditional acceptance of each draft. What is no probability
        counts as 0, what is above 1 as 1. The certainty of a draft is the product up to it; ties go to the smaller
        request row, then to the earlier draft.
    :param remap: int32 ``[N]``, row in the step before; -1 has no confidences there. None: every request continues the
        row of its own number, and N is M.
    :param budget: Rows in all, from N to ``N * (K + 1)``.
    :raises ShapeContractError: as the op of ``cpu``.
    """
    sized = confidence.dim() == 2 and confidence.dtype == torch.float32 and confidence.is_contiguous()
    m, k = confidence.shape if sized else (0, 0)
    n = m if remap is None else remap.shape[0] if remap.dim() == 1 else 0
    fits = m and 0 < k <= MOST_DRAFTS and 0 < n <= MOST_REQUESTS and n <= budget <= n * (k + 1)
    if not serves("meta.verify_lengths") or not fits or not (remap is None or int32(remap, (n,))):
        return plain_op("meta.verify_lengths")(confidence, remap, budget)  # type: ignore[no-any-return]
    out = torch.empty(n, dtype=torch.int32, device=confidence.device)
    launch = share_rows(drafts=k, mapped=remap is not None)
    launch(confidence, out if remap is None else remap, budget - n, out)
    return out


OPS = {"meta.verify_lengths": verify_lengths}
