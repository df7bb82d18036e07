"""FlashMLA 1.0: sparse attention over bf16 keys, and over the FP8 window beside an FP4 or FP8 main cache.

Heads are 64 or 128, entries 512 values; the width of an index list is a multiple of a tile, filled with -1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

HEADS = (64, 128)
WIDTH = 512
TILE = 128
"""Columns of an index list that a kernel takes at once."""
MAIN_FORMATS = ("v41", "v41_fp4")


def fits_prefill(q: Tensor, kv: Tensor, indices: Tensor, *, round_probs: bool | None = None, **_: Any) -> bool:
    """Probabilities are bf16 there, so a caller that wants them in fp32 gets our own kernel."""
    return (
        _fits_query(q)
        and kv.dtype == torch.bfloat16
        and kv.is_contiguous()
        and kv.shape[1] == WIDTH
        and round_probs is not False
    )


def call_prefill(
    forward: Callable[..., Any],
    q: Tensor,
    kv: Tensor,
    indices: Tensor,
    *,
    scale: float,
    sink: Tensor | None = None,
    lengths: Tensor | None = None,
    round_probs: bool | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``attn.sparse_prefill`` through ``flash_mla_sparse_fwd``."""
    result, _, lse = forward(
        q, kv.unsqueeze(1), filled(indices).unsqueeze(1), scale, d_v=WIDTH, attn_sink=sink, topk_length=lengths
    )
    return (result if out is None else out.copy_(result)), lse


def fits_decode(
    q: Tensor, window: Any, idx: Tensor, *, extra: Any = None, round_probs: bool | None = None, **_: Any
) -> bool:
    """The window is FP8; FP4 is taken beside it only."""
    caches = window.format == "v41" and (extra is None or extra.format in MAIN_FORMATS)
    return _fits_query(q) and caches and window.width == WIDTH and round_probs is not False


def call_decode(
    forward: Callable[..., Any],
    metadata: Callable[[], tuple[Any, None]],
    q: Tensor,
    window: Any,
    idx: Tensor,
    *,
    plan: Any = None,
    scale: float,
    sink: Tensor | None = None,
    lengths: Tensor | None = None,
    extra: Any = None,
    extra_idx: Tensor | None = None,
    extra_lengths: Tensor | None = None,
    round_probs: bool | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``attn.sparse_decode`` through ``flash_mla_with_kvcache``: each row of ``q`` is a batch of its own.

    The handle of ``get_mla_metadata`` holds for equal lengths only, so that each call has a new one.
    """
    result, lse = forward(
        q.unsqueeze(1),
        window.tensor.unsqueeze(2),
        None,
        None,
        WIDTH,
        metadata()[0],
        softmax_scale=scale,
        is_fp8_kvcache=True,
        indices=filled(idx).unsqueeze(1),
        attn_sink=sink,
        extra_k_cache=None if extra is None else extra.tensor.unsqueeze(2),
        extra_indices_in_kvcache=None if extra_idx is None else filled(extra_idx).unsqueeze(1),
        topk_length=lengths,
        extra_topk_length=extra_lengths,
        enable_batch_invariant=bool(getattr(plan, "batch_invariant", False)),
    )
    result, lse = result.squeeze(1), lse.squeeze(2)
    return (result if out is None else out.copy_(result)), lse


def filled(indices: Tensor) -> Tensor:
    """``[T, k]`` with columns of -1 up to the next multiple of a tile."""
    missing = -indices.shape[1] % TILE
    return pad(indices, (0, missing), value=-1) if missing else indices


def _fits_query(q: Tensor) -> bool:
    shape = q.dim() == 3 and q.shape[1] in HEADS and q.shape[2] == WIDTH and q.shape[0] > 0
    return shape and q.dtype == torch.bfloat16 and q.stride(-1) == 1
