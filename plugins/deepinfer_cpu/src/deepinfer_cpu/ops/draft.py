"""Index arrays of a drafter's block (``spec/kernels.md`` 2.5, ``spec/model.md`` 2.11). No host reads here."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from deepinfer_cpu.contracts import shape_error


def draft_inputs(
    sampled: Tensor, last: Tensor, slot: Tensor, *, block: int, window: int, ring: int, noise: int, vocab_size: int
) -> Mapping[str, Tensor]:
    """Rows of a block drafter: ``block`` for each request, at the positions behind its last known one.

    Each row sees the window of known positions that ends at ``last``, and all rows of its own block. The keys of a
    block live in ``block`` entries of the request's slot, apart from the ring, so that drafting leaves no trace there.

    :param sampled: int ``[N]``, the token at ``last + 1``; out of range (a request that failed) counts as ``noise``.
    :param last: int32 ``[N]``, last position whose keys are in the ring. :param slot: int32 ``[N]``, slot of the ring.
    :returns: ``input_ids`` (the token, then noise), ``positions`` and ``slot_draft`` int32 ``[N * block]``;
        ``window_index`` int32 ``[N * block, window]``, slots of the ring, -1 none; ``draft_index`` int32
        ``[N * block, block]``, slots of the block.
    """
    n = last.shape[0]
    if sampled.shape != (n,) or slot.shape != (n,):
        raise shape_error("meta.draft_inputs", "sampled, last, slot", f"[{n}] each", (sampled.shape, slot.shape))
    step = torch.arange(block, dtype=torch.int32, device=last.device)
    ids = torch.full((n, block), noise, dtype=torch.int32, device=last.device)
    ids[:, 0] = sampled.to(torch.int32).masked_fill((sampled < 0) | (sampled >= vocab_size), noise)
    first = (last - window + 1).clamp(min=0).unsqueeze(1)
    at = first + torch.arange(window, dtype=torch.int32, device=last.device)
    keys = (slot * ring).unsqueeze(1) + at % ring
    keys = keys.masked_fill_(at > last.unsqueeze(1), -1)
    own = (slot * block).unsqueeze(1) + step
    return {
        "input_ids": ids.reshape(-1),
        "positions": (last.unsqueeze(1) + 1 + step).reshape(-1),
        "slot_draft": own.reshape(-1),
        "window_index": keys.repeat_interleave(block, 0),
        "draft_index": own.repeat_interleave(block, 0),
    }
