"""Mixture of experts on one device (``spec/kernels.md`` 2.7): the gate of tile-kernels, products of DeepGEMM."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_ascend import vendor
from deepinfer_ascend.ops.gemm import aligned_product, takes_aligned
from deepinfer_ascend.ops.quant import cast_per_token, of_plain
from deepinfer_ascend.plain import plain_op
from deepinfer_ascend.routing import SEGMENT, Dispatched, aligned_places
from deepinfer_ascend.tensors import PreparedWeight, QuantTensor

CAST = ("e4m3", 32, "ue8m0")


def gate(
    x: Tensor,
    w: Any,
    bias: Tensor,
    *,
    k: int,
    scale: float,
    temperature: float = 1.0,
    bias_image: Tensor | None = None,
    image_rows: Tensor | None = None,
    mask: Tensor | None = None,
    force_random: Tensor | None = None,
    placement: object | None = None,
) -> tuple[Tensor, Tensor]:
    """Choose ``k`` experts a token: the best of score + bias, lower id first among equals.

    Logits by the plain product in fp32, the choice by the kernel of tile-kernels.

    :param x: ``[T, H]``; ``w`` ``[H, E]``; ``bias`` fp32 ``[E]``, or ``bias_image`` on rows where ``image_rows``.
    :param mask: bool ``[T]``, False gives ids -1 and weights 0.
    :returns: int64 ``[T, k]`` in order of choice, and fp32 weights: scores over their sum, times ``scale``.
    :raises UnsupportedFeature: ``force_random`` or ``placement`` (expert replicas) is asked for.
    """
    fits = temperature == 1.0 and force_random is None and placement is None
    if not fits or not _takes_gate(x, w, bias, k, bias_image, image_rows, mask):
        return plain_op("moe.gate")(  # type: ignore[no-any-return]
            x, w, bias, k=k, scale=scale, temperature=temperature, bias_image=bias_image, image_rows=image_rows,
            mask=mask, force_random=force_random, placement=placement,
        )  # fmt: skip
    scores = plain_op("gemm.dense")(x, w, out_dtype=torch.float32)
    images = image_rows is not None
    choose = vendor.symbol("tile_kernels.moe_topk_gate_forward", x)
    return choose(  # type: ignore[no-any-return]
        scores, k, False, 0, scale, 0, mask=mask, bias=bias, image_bias=bias_image if images else None,
        image_token_mask=image_rows,
    )  # fmt: skip


def _takes_gate(
    x: Any, w: Any, bias: Tensor, k: int, bias_image: Tensor | None, image_rows: Tensor | None, mask: Tensor | None
) -> bool:
    if not isinstance(w, PreparedWeight) or len(w.shape) != 2 or not isinstance(x, Tensor) or x.dim() != 2:
        return False
    experts = w.shape[1]
    biases = [b for b in (bias, bias_image) if b is not None]
    flags = [flag for flag in (image_rows, mask) if flag is not None]
    return (
        x.shape[0] > 0
        and x.shape[1] == w.shape[0]
        and x.dtype in (torch.bfloat16, torch.float32)
        and 1 <= k <= experts
        and (image_rows is None or bias_image is not None)
        and all(b.dtype == torch.float32 and b.shape == (experts,) for b in biases)
        and all(flag.dtype == torch.bool and flag.shape == x.shape[:1] for flag in flags)
    )


def dispatch(x: Any, idx: Tensor, weight: Tensor, *, group: object | None = None, align: int = 1) -> Dispatched:
    """Sort (token, choice) pairs by expert, tokens in order. ``x`` ``[T, H]``, ``idx`` int64 ``[T, k]`` (-1 masked).

    :raises UnsupportedFeature: ``group`` names more than this rank.
    """
    d = plain_op("moe.dispatch")(x, idx, weight, group=group, align=align)
    scaled = isinstance(x, QuantTensor) and (x.fmt, x.group, x.sf_kind) == CAST
    return Dispatched(d.x, d.weight, d.segments, d.handle, d.expert, scaled)


def swiglu(
    x: Tensor,
    *,
    clamp: float,
    weight: Tensor | None = None,
    cast: tuple[str, int, str] | None = None,
    dtype: torch.dtype | None = None,
) -> Any:
    """``silu(min(g, clamp)) * clip(u, -clamp, clamp) * weight`` of ``x`` = [g | u] ``[T, 2I]``, fp32, one rounding.

    :param clamp: 0 turns the limits off. :param weight: fp32 ``[T]``.
    :param cast: quantise the rounded result. :param dtype: None keeps that of ``x``.
    """
    made = plain_op("moe.swiglu")(x, clamp=clamp, weight=weight, cast=cast, dtype=dtype)
    return made if cast is None else of_plain(made)


def experts(d: Any, w1: Any, w2: Any, *, clamp: float, cast: tuple[str, int, str] | None = CAST) -> Tensor:
    """Rows of ``d`` through their experts: gate|up, SwiGLU times the routing weight, quantise, down.

    FP8 rows and FP4 or FP8 weights whose sizes a kernel takes go through grouped products, each expert's rows at the
    next multiple of 128; everything else takes the plain op.

    :returns: ``[M, H]`` in the dtype of the dispatched tokens.
    """
    found = _aligned(d, w1, w2, clamp) if cast == CAST else None
    if found is None:
        return plain_op("moe.experts")(d, w1, w2, clamp=clamp, cast=cast)
    return found


def _aligned(d: Any, w1: Any, w2: Any, clamp: float) -> Tensor | None:
    """By grouped products, or None where they do not take the sizes."""
    if not isinstance(w1, PreparedWeight) or not isinstance(w2, PreparedWeight) or not d.x.shape[0]:
        return None
    if not isinstance(d, Dispatched) or not d.is_scaled:
        return None
    if w1.shape[1] != d.x.shape[1] or w2.shape[1] * 2 != w1.shape[2] or d.handle.dtype != torch.bfloat16:
        return None
    places, ends = segment_places(d, w1.shape[0])
    # Where the host knows no sizes, as many rows as there can be: each segment may end 127 rows before the next begins.
    last = int(ends[-1]) if d.expert is None else d.x.shape[0] + w1.shape[0] * (SEGMENT - 1)
    rows = -(-last // SEGMENT) * SEGMENT
    x = d.x.new_zeros(rows, d.x.shape[1], dtype=torch.bfloat16)
    x[places] = d.x.bfloat16()  # values of E4M3 codes and powers of two: bf16 holds them, and the cast gives them back
    q = cast_per_token(x)
    if not takes_aligned(q, w1):
        return None
    weight = d.weight.new_zeros(rows)
    weight[places] = d.weight
    hidden = swiglu(aligned_product(q, w1, ends), clamp=clamp, weight=weight, cast=CAST)
    if not isinstance(hidden, QuantTensor) or not takes_aligned(hidden, w2):
        return None
    return aligned_product(hidden, w2, ends)[places]


def segment_places(d: Any, count: int) -> tuple[Tensor, Tensor]:
    """Where each dispatched row goes, int64 ``[M]``, and where each expert's rows end, int32 ``[E]``: segments begin at
    multiples of 128, and one without rows ends where it begins."""
    if d.expert is None:
        sizes = torch.zeros(count, dtype=torch.int64)
        for expert, begin, end in d.segments:
            sizes[expert] = end - begin
        expert = torch.repeat_interleave(torch.arange(count), sizes)
    else:
        expert = d.expert
        sizes = torch.zeros(count + 1, dtype=torch.int64, device=expert.device)
        sizes.index_add_(0, expert.clamp(max=count), torch.ones_like(expert))
        sizes = sizes[:count]
    return aligned_places(expert, sizes)


OPS = {"moe.gate": gate, "moe.dispatch": dispatch, "moe.swiglu": swiglu, "moe.experts": experts}
