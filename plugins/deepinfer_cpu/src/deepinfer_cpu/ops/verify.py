"""Which drafts a decode step verifies, by confidences that only the device knows (``spec/engine.md`` 7.4)."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_cpu.contracts import shape_error


def verify_lengths(confidence: Tensor, remap: Tensor | None, budget: int) -> Tensor:
    """Rows of each request, int32 ``[N]``: the token to extend, and its drafts among the ``budget - N`` most certain.

    The same rule as the scheduler's own (``deepinfer_native.verify.verify_lengths``): the certainty of draft j is the
    float32 product of the confidences up to j, from the left; ties go to the smaller request row, then to the earlier
    draft. So each request verifies a prefix of its drafts. Nothing here is read on the host.

    :param confidence: f32 ``[M, K]`` of the step before, conditional acceptance of each draft. A sampler gives 0 to a
        request that emitted a stop token. What is no probability counts as 0, what is above 1 as 1.
    :param remap: int32 ``[N]``, row in the step before; -1 has no confidences there, and verifies nothing before every
        draft that has. None: every request continues the row of its own number, and N is M.
    :param budget: Rows in all, from N to ``N * (K + 1)``.
    """
    if confidence.dim() != 2:
        raise shape_error("meta.verify_lengths", "confidence", "[M, K]", list(confidence.shape))
    n, k = confidence.shape[0] if remap is None else remap.shape[0], confidence.shape[1]
    if not n <= budget <= n * (k + 1):
        raise shape_error("meta.verify_lengths", "budget", f"{n} .. {n * (k + 1)}", budget)
    if k and not confidence.shape[0]:
        raise shape_error("meta.verify_lengths", "confidence", "the rows of the step before", list(confidence.shape))
    # Not cumprod: it may multiply in another precision.
    known = torch.nan_to_num(confidence.float(), nan=0.0).clamp(0, 1)
    columns = list(known.unbind(1))
    for j in range(1, k):
        columns[j] = columns[j - 1] * columns[j]
    values = torch.stack(columns, dim=1) if k else known
    if remap is not None:
        source = remap.long()
        absent = (source < 0) | (source >= confidence.shape[0])
        values = values[source.masked_fill(absent, 0)].masked_fill(absent.unsqueeze(1), 0)
    order = torch.sort(values.reshape(-1), descending=True, stable=True).indices
    taken = order[: budget - n].div(max(k, 1), rounding_mode="floor")
    lengths = torch.ones(n, dtype=torch.int32, device=confidence.device)
    return lengths.index_add_(0, taken, torch.ones_like(taken, dtype=torch.int32))
