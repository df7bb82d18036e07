"""FlashMLA: sparse attention of 64 heads of 512 values over one key, which is the value too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_ascend.contracts import check, misfit
from deepinfer_ascend.plain import plain_op

HEADS, WIDTH, TILE = 64, 512, 64
MAIN, EXTRA = ("v41",), ("v41", "v41_fp4")


def flash_mla_sparse_fwd(
    q: Tensor,
    kv: Tensor,
    indices: Tensor,
    sm_scale: float,
    d_v: int = WIDTH,
    attn_sink: Tensor | None = None,
    topk_length: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """bf16 ``[T, 64, 512]`` over bf16 ``[S, 1, 512]`` named by int32 ``[T, 1, k]``: out, largest logits, lse."""
    call = "flash_mla_sparse_fwd"
    rows = check(call, "q", q, torch.bfloat16, None, HEADS, WIDTH).shape[0]
    check(call, "kv", kv, torch.bfloat16, None, 1, WIDTH)
    check(call, "indices", indices, torch.int32, rows, 1, None)
    _check_rest(call, rows, d_v, indices.shape[2], attn_sink, topk_length)
    out, lse = plain_op("attn.sparse_prefill")(
        q, kv[:, 0], indices[:, 0], scale=sm_scale, sink=attn_sink, lengths=topk_length
    )
    return out, torch.full_like(lse, float("nan")), lse  # nobody asks for the largest logits


def get_mla_metadata() -> tuple[object, None]:
    """A handle for one step."""
    return object(), None


def flash_mla_with_kvcache(
    q: Tensor,
    k_cache: Any,
    block_table: None,
    cache_seqlens: None,
    head_dim_v: int,
    tile_scheduler_metadata: object,
    num_splits: None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    is_fp8_kvcache: bool = False,
    indices: Tensor | None = None,
    attn_sink: Tensor | None = None,
    extra_k_cache: Any = None,
    extra_indices_in_kvcache: Tensor | None = None,
    topk_length: Tensor | None = None,
    extra_topk_length: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """bf16 ``[b, 1, 64, 512]`` over caches of bytes: out ``[b, 1, 64, 512]`` and lse ``[b, 64, 1]``. A cache is given
    as its CacheView, whose tensor the library would read."""
    call = "flash_mla_with_kvcache"
    if tile_scheduler_metadata is None or not is_fp8_kvcache or causal or softmax_scale is None or indices is None:
        raise misfit(call, "options", "a handle, an FP8 cache, a scale and indices, not causal", "others")
    rows = check(call, "q", q, torch.bfloat16, None, 1, HEADS, WIDTH).shape[0]
    check(call, "indices", indices, torch.int32, rows, 1, None)
    _check_rest(call, rows, head_dim_v, indices.shape[2], attn_sink, topk_length)
    _check_cache(call, "k_cache", k_cache, MAIN)
    more = None
    if extra_k_cache is not None:
        _check_cache(call, "extra_k_cache", extra_k_cache, EXTRA)
        more = check(call, "extra_indices_in_kvcache", extra_indices_in_kvcache, torch.int32, rows, 1, None)
        _check_rest(call, rows, head_dim_v, more.shape[2], attn_sink, extra_topk_length)
    out, lse = plain_op("attn.sparse_decode")(
        q[:, 0], k_cache, indices[:, 0], scale=softmax_scale, sink=attn_sink, lengths=topk_length,
        extra=extra_k_cache, extra_idx=None if more is None else more[:, 0], extra_lengths=extra_topk_length,
    )  # fmt: skip
    return out.unsqueeze(1), lse.unsqueeze(2)


def _check_rest(call: str, rows: int, d_v: int, k: int, sink: Tensor | None, lengths: Tensor | None) -> None:
    if d_v != WIDTH or k % TILE or not k:
        raise misfit(call, "d_v, k", f"{WIDTH}, and a multiple of {TILE} keys", (d_v, k))
    if sink is not None:
        check(call, "attn_sink", sink, torch.float32, HEADS)
    if lengths is not None:
        check(call, "topk_length", lengths, torch.int32, rows)


def _check_cache(call: str, name: str, view: Any, formats: tuple[str, ...]) -> None:
    if view.format not in formats or view.width != WIDTH or view.tensor.dtype != torch.uint8:
        raise misfit(call, name, f"{' or '.join(formats)} of {WIDTH} values", (view.format, view.width))
    if view.block_stride % 32 or view.block_stride % view.tensor.shape[2]:
        raise misfit(call, name, f"blocks at multiples of 32 and of {view.tensor.shape[2]} bytes", view.block_stride)
