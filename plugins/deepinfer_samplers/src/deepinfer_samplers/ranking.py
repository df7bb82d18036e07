"""The order of tokens within a row: highest logit first, equal logits (+0 and -0 too) by the lower id.

A token's place is one int64, ``(descending logit bits) << 32 | id``; these are distinct, so any sort gives the one
order and a cut is a comparison. On the CPU numpy's argmax and vectorised integer sort are ten times as fast as torch's
and give the same answer, so host tensors are passed to them without a copy.
"""

from __future__ import annotations

import torch

_ID_MASK = 0xFFFFFFFF


def best(logits: torch.Tensor) -> torch.Tensor:
    """Id of the highest logit of each row, the lowest one on ties; the first NaN where there is one. int64 ``[R]``."""
    if logits.device.type == "cpu":
        return torch.from_numpy(logits.numpy().argmax(-1))
    return logits.argmax(-1)


def rank_keys(logits: torch.Tensor) -> torch.Tensor:
    """Distinct int64 ``[R, V]`` that ascend from the best token to the worst. ``logits`` f32, without NaN."""
    bits = (logits + 0.0).view(torch.int32)  # adding +0 turns -0 into +0
    ascending = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    ids = torch.arange(logits.shape[-1], device=logits.device)
    return (torch.bitwise_not(ascending).to(torch.int64) << 32) | ids


def sort_keys(keys: torch.Tensor) -> torch.Tensor:
    """``keys`` of each row in ascending order."""
    if keys.device.type == "cpu":
        ordered = keys.numpy().copy()
        ordered.sort(-1)
        return torch.from_numpy(ordered)
    return keys.sort(-1).values


def key_ids(keys: torch.Tensor) -> torch.Tensor:
    """The token ids of rank keys."""
    return keys & _ID_MASK
