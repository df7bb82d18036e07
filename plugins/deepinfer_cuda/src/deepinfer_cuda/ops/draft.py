"""Index arrays of a drafter's block (``spec/kernels.md`` 2.5, ``spec/model.md`` 2.11), in one launch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from deepinfer_cuda.fits import int32
from deepinfer_cuda.plain import plain_op
from deepinfer_cuda.tl.meta.slots import THREADS, draft_rows

INTEGERS = {torch.int32: "int32", torch.int64: "int64"}


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
    :raises ShapeContractError: as the op of ``cpu``.
    """
    n = last.shape[0] if last.dim() == 1 else 0
    known = n and int32(last, (n,)) and int32(slot, (n,)) and sampled.shape == (n,) and sampled.dtype in INTEGERS
    if not known or not 0 < block <= THREADS or window < 1:
        return plain_op("meta.draft_inputs")(  # type: ignore[no-any-return]
            sampled, last, slot, block=block, window=window, ring=ring, noise=noise, vocab_size=vocab_size
        )
    ids, positions, slots = last.new_empty(3, n * block).unbind(0)
    keys, own = last.new_empty(n * block, window), last.new_empty(n * block, block)
    launch = draft_rows(block=block, sampled_type=INTEGERS[sampled.dtype])
    launch(sampled.contiguous(), last, slot, ring, noise, vocab_size, ids, positions, slots, keys, own)
    return {"input_ids": ids, "positions": positions, "slot_draft": slots, "window_index": keys, "draft_index": own}


OPS = {"meta.draft_inputs": draft_inputs}
