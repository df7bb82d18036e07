"""The order of tokens within a row: highest logit first, equal logits (+0 and -0 too) by the lower id.

A beginning of this order is known by its length and the logit of its last token; ids matter only among tokens equal to
that one. So plain values are sorted, never (value, id) pairs. On the CPU numpy's argmax, sort and partition are ten
times as fast as torch's and give the same values, so host tensors are passed to them without a copy.
"""

from __future__ import annotations

import numpy as np
import torch

from deepinfer_samplers import shortcuts


def best(logits: torch.Tensor) -> torch.Tensor:
    """Id of the highest logit of each row, the lowest one on ties; the first NaN where there is one. int64 ``[R]``."""
    if shortcuts.on_host(logits):
        return torch.from_numpy(shortcuts.as_numpy(logits).argmax(-1))
    return logits.argmax(-1)


def highest(logits: torch.Tensor, count: int) -> torch.Tensor:
    """The ``count`` highest values of each row in falling order: f32 ``[R, V]`` -> ``[R, count]``. No NaN."""
    width = logits.shape[-1]
    if not shortcuts.on_host(logits):
        return logits.topk(count).values
    values = shortcuts.as_numpy(logits)
    if count < width:
        values = np.partition(values, width - count, axis=-1)[:, width - count :]
    return torch.from_numpy(np.sort(values, axis=-1)).flip(-1)


def beyond(logits: torch.Tensor, ordered: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Tokens that are not among the first ``count`` of their row: bool ``[R, V]``.

    :param ordered: f32 ``[R, C]``, the `highest` values of each row; ``C`` is the width or above every ``count``.
    :param count: int64 ``[R]``, at least 1.
    """
    at = count.unsqueeze(1)
    last = ordered.gather(1, at - 1)
    outside = shortcuts.below(logits, last)
    following = ordered.gather(1, at.clamp(max=ordered.shape[-1] - 1))
    crowded = (following == last).squeeze(1) & (count < logits.shape[-1])
    if shortcuts.is_clear(crowded):
        return outside
    # More tokens tie with the last one than there is room for.
    rows = shortcuts.set_rows(crowded)
    if rows is None:
        return outside | (_surplus(logits, last, count) & crowded.unsqueeze(1))
    outside[rows] |= _surplus(logits[rows], last[rows], count[rows])
    return outside


def _surplus(logits: torch.Tensor, last: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Tokens equal to the last one that come after the room for them is used up: bool ``[R, V]``."""
    tied = logits == last
    room = count - (logits > last).sum(-1)
    return tied & (tied.cumsum(-1) > room.unsqueeze(1))


def leaders(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first ``count`` tokens of each row in rank order: ids int64 and values f32, both ``[R, count]``. No NaN.

    :param count: At least 1, at most the width.
    """
    width = logits.shape[-1]
    following = min(count + 1, width)
    limit = torch.full((len(logits),), count, dtype=torch.int64, device=logits.device)
    outside = beyond(logits, highest(logits, following), limit)
    if shortcuts.on_host(logits):
        ids = torch.from_numpy(np.flatnonzero(~shortcuts.as_numpy(outside)) % width).view(-1, count)
    else:
        numbers = torch.arange(width, device=logits.device)
        ids = torch.where(outside, width, numbers).topk(count, largest=False).values
    values = logits.gather(1, ids) + 0.0  # -0 becomes +0, so that both rank alike on every device
    values, order = values.sort(dim=-1, descending=True, stable=True)
    return ids.gather(1, order), values
