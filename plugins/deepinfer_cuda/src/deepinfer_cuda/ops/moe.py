"""Mixture of experts on one device: gate, dispatch, experts, combine (``spec/kernels.md`` 2.7)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from deepinfer_cuda import products
from deepinfer_cuda.grouped import can_pack, product, tile_rows
from deepinfer_cuda.ops.quant import cast_per_token
from deepinfer_cuda.plain import plain_op
from deepinfer_cuda.routing import Dispatched, Handle, Routing
from deepinfer_cuda.tensors import PreparedWeight, QuantTensor
from deepinfer_cuda.tl.moe.gate import gate_choose, gate_logits, halves, segments
from deepinfer_cuda.tl.moe.rows import combine_rows, gather_rows
from deepinfer_cuda.tl.moe.swiglu import swiglu_rows
from deepinfer_cuda.unproven import EXPERT_ROWS, serves

CAST = ("e4m3", 32, "ue8m0")
MAX_EXPERTS, MAX_CHOICES = 1024, 16
FEW_TOKENS = 512
"""Tokens up to which the segments of the gate's inner dimension have blocks of their own."""
LIBRARY_TOKENS = 32
"""Tokens from which the library multiplies, unless a token's bits must not depend on its batch."""
GATE_TILES = ((16, 16), (FEW_TOKENS, 64), (2048, 96), (math.inf, 192))
"""Tokens of a call up to which a block of the gate's product has so many."""


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

    :param x: ``[T, H]``; ``w`` ``[H, E]``; ``bias`` fp32 ``[E]``, or ``bias_image`` on rows where ``image_rows``.
    :param mask: bool ``[T]``, False gives ids -1 and weights 0.
    :returns: int64 ``[T, k]`` in order of choice, and fp32 weights: scores over their sum, times ``scale``.
    :raises UnsupportedFeature: ``force_random`` or ``placement`` (expert replicas) is asked for.
    """
    if not serves("moe.gate") or not _takes_gate(
        x, w, bias, k, temperature, bias_image, image_rows, mask, (force_random, placement)
    ):
        return plain_op("moe.gate")(  # type: ignore[no-any-return]
            x, w, bias, k=k, scale=scale, temperature=temperature, bias_image=bias_image, image_rows=image_rows,
            mask=mask, force_random=force_random, placement=placement,
        )  # fmt: skip
    tokens, experts, device = x.shape[0], w.outputs, x.device
    ids = torch.empty(tokens, k, dtype=torch.int64, device=device)
    weights = torch.empty(tokens, k, dtype=torch.float32, device=device)
    if not tokens:
        return ids, weights
    logits, runs = _logits(_rows(x), w)
    parts = logits.shape[0]
    image, masked = image_rows is not None, mask is not None
    unused = None if image and masked else torch.empty(tokens, dtype=torch.bool, device=device)
    choose = gate_choose(experts=experts, choices=k, parts=parts, runs=runs, image=image, masked=masked)
    choose(
        logits, bias, bias if bias_image is None else bias_image, image_rows if image else unused,
        mask if masked else unused, temperature, scale, ids, weights,
    )  # fmt: skip
    return ids, weights


def _logits(x: Tensor, w: PreparedWeight) -> tuple[Tensor, int]:
    """fp32 ``[parts, T, E]``, parts of a sum, and in how many runs they are added."""
    tokens, experts, device = x.shape[0], w.outputs, x.device
    if tokens >= LIBRARY_TOKENS and not products.SETTINGS.batch_invariant:
        return torch.mm(x, w.stored.t(), out_dtype=torch.float32)[None], 1
    split = tokens <= FEW_TOKENS
    runs = halves(w.inputs)
    parts = segments(w.inputs) if split else runs
    logits = torch.empty(parts, tokens, experts, dtype=torch.float32, device=device)
    tile = next(tile for most, tile in GATE_TILES if tokens <= most)
    gate_logits(width=w.inputs, experts=experts, split=split, tokens_tile=tile)(x, w.stored, logits)
    return logits, runs


def _takes_gate(
    x: Any, w: Any, bias: Tensor, k: int, temperature: float, bias_image: Tensor | None, image_rows: Tensor | None,
    mask: Tensor | None, absent: tuple[object, ...],
) -> bool:  # fmt: skip
    if absent != (None, None) or not isinstance(w, PreparedWeight) or w.fmt != "bf16" or len(w.size) != 2:
        return False
    if not _is_bf16_rows(x) or x.shape[1] != w.inputs or w.inputs % 8 or not w.stored.is_contiguous():
        return False
    experts = w.outputs
    if experts > MAX_EXPERTS or not 1 <= k <= min(experts, MAX_CHOICES) or temperature <= 0.0:
        return False
    biases = [bias] if bias_image is None else [bias, bias_image]
    flags = [flag for flag in (image_rows, mask) if flag is not None]
    return (
        all(b.is_cuda and b.dtype == torch.float32 and b.shape == (experts,) and b.is_contiguous() for b in biases)
        and all(f.is_cuda and f.dtype == torch.bool and f.shape == x.shape[:1] and f.is_contiguous() for f in flags)
        and (image_rows is None or bias_image is not None)
    )


def dispatch(
    x: Tensor | QuantTensor, idx: Tensor, weight: Tensor, *, group: object | None = None, align: int = 1
) -> Any:
    """Sort (token, choice) pairs by expert, tokens in order. ``x`` ``[T, H]``, ``idx`` int64 ``[T, k]`` (-1 masked).

    There is a row for every choice; those of masked ones come last and have weight 0. The host learns no count.

    :raises UnsupportedFeature: ``group`` names more than this rank.
    """
    quantised = isinstance(x, QuantTensor)
    takes = (quantised and x.sf_kind == "ue8m0") or _is_bf16_rows(x)
    if group is not None or align < 1 or not takes or not _is_routing(x, idx, weight):
        return plain_op("moe.dispatch")(x, idx, weight, group=group, align=align)
    return Dispatched(x, Routing(idx.contiguous(), weight.contiguous()))


def _is_routing(x: Tensor | QuantTensor, idx: Tensor, weight: Tensor) -> bool:
    return (
        len(x.shape) == 2
        and idx.is_cuda
        and idx.dim() == 2
        and idx.shape == weight.shape
        and idx.shape[0] == x.shape[0]
        and 1 <= idx.shape[1] <= MAX_CHOICES
        and idx.dtype == torch.int64
        and weight.dtype == torch.float32
    )


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
    inner = x.shape[-1] // 2 if x.dim() else 0
    whole = inner > 0 and x.shape[-1] % (64 if cast is not None else 16) == 0
    if (
        not serves("moe.swiglu")
        or not _is_bf16_rows(x)
        or not whole
        or clamp < 0.0
        or cast not in (None, CAST)
        or dtype not in (None, torch.bfloat16)
        or (weight is not None and not _is_f32(weight, x.shape[:1]))
    ):
        if cast != CAST or x.dtype != torch.bfloat16 or dtype not in (None, torch.bfloat16):
            return plain_op("moe.swiglu")(x, clamp=clamp, weight=weight, cast=cast, dtype=dtype)
        return cast_per_token(plain_op("moe.swiglu")(x, clamp=clamp, weight=weight))
    tokens = x.shape[0]
    y = torch.empty(tokens, inner, dtype=torch.bfloat16, device=x.device)
    sf = torch.empty(tokens, inner // 32, dtype=torch.uint8, device=x.device)
    if tokens:
        launch = swiglu_rows(inner=inner, weighted=weight is not None, cast=cast is not None)
        factor = torch.empty(tokens, dtype=torch.float32, device=x.device) if weight is None else weight
        launch(_words(_rows(x)), factor, clamp or math.inf, _words(y), sf)
    if cast is None:
        return y
    return QuantTensor(fmt="e4m3", group=32, sf_kind="ue8m0", sf=sf, exact=y)


def experts(d: Any, w1: Any, w2: Any, *, clamp: float, cast: tuple[str, int, str] | None = CAST) -> Tensor:
    """Rows of ``d`` through their experts: gate|up, SwiGLU times the routing weight, quantise, down.

    ``w1`` is a stack ``[E, H, 2I]`` (gate columns, then up), ``w2`` ``[E, I, H]``. ``cast`` None leaves the hidden
    values unquantised (mode ``exact``).

    :returns: ``[M, H]`` in the dtype of the dispatched tokens; rows behind the last choice hold something.
    """
    if not isinstance(d, Dispatched):
        return plain_op("moe.experts")(d, w1, w2, clamp=clamp, cast=cast)  # type: ignore[no-any-return]
    if not _takes_experts(d, w1, w2, cast):
        return plain_op("moe.experts")(d.plain(), w1, w2, clamp=clamp, cast=cast)  # type: ignore[no-any-return]
    rows, count, device = d.routing.rows, w1.shape[0], d.exact.device
    y = torch.empty(rows, w2.outputs, dtype=torch.bfloat16, device=device)
    if not rows:
        return y
    tile = tile_rows(rows, count)
    if serves(EXPERT_ROWS):
        tiles = d.routing.tiles(count, tile)
        x = torch.empty(rows, d.width, dtype=torch.bfloat16, device=device)
        gather_rows(width=d.width, choices=d.routing.idx.shape[1])(_words(_rows(d.exact)), d.routing.pair_of, _words(x))
    else:
        tiles, x = d.routing.plain_tiles(count, tile), d.exact_rows
    hidden = torch.empty(rows, w2.inputs, dtype=torch.bfloat16, device=device)
    weight = d.weight
    product(x, tiles, w1, hidden, tile=tile, weight=weight, gated=True, cast=cast is not None, limit=clamp or math.inf)
    return product(hidden, tiles, w2, y, tile=tile, weight=weight)


def _takes_experts(d: Dispatched, w1: Any, w2: Any, cast: tuple[str, int, str] | None) -> bool:
    """Whether the kernels serve a call; what breaks the contract is the plain op's to refuse."""
    packable = can_pack(w1, gated=True) and can_pack(w2, gated=False)
    fits = w1.shape[1] == d.width and w2.shape[1] * 2 == w1.shape[2] and w1.shape[0] == w2.shape[0]
    return packable and fits and cast in (None, CAST)


def combine(y: Tensor, handle: Any, *, bias: Tensor | None = None) -> Tensor:
    """Sum each token's expert rows in fp32 in ascending expert id, then ``bias`` ``[T, H]`` (the shared expert's
    output); one rounding to the dtype of the dispatched tokens."""
    if not serves("moe.combine") or not isinstance(handle, Handle) or not _takes_combine(y, handle, bias):
        return plain_op("moe.combine")(y, handle, bias=bias)  # type: ignore[no-any-return]
    out = torch.empty(handle.tokens, y.shape[1], dtype=torch.bfloat16, device=y.device)
    if handle.tokens:
        row_of = handle.routing.row_of
        launch = combine_rows(width=y.shape[1], choices=row_of.shape[1], shared=bias is not None)
        launch(_words(_rows(y)), row_of, _words(out if bias is None else _rows(bias)), _words(out))
    return out


def _takes_combine(y: Tensor, handle: Handle, bias: Tensor | None) -> bool:
    if not _is_bf16_rows(y) or y.shape[0] != handle.sent or y.shape[1] % 8:
        return False
    return bias is None or (_is_bf16_rows(bias) and bias.shape == (handle.tokens, y.shape[1]))


def _is_bf16_rows(x: Any) -> bool:
    return (
        isinstance(x, Tensor)
        and x.is_cuda
        and x.dtype == torch.bfloat16
        and x.dim() == 2
        and (x.stride(1) == 1 or x.shape[1] == 1)
    )


def _is_f32(x: Tensor, shape: torch.Size) -> bool:
    return x.is_cuda and x.dtype == torch.float32 and x.shape == shape and x.is_contiguous()


def _rows(x: Tensor) -> Tensor:
    """``x`` as it is, or a copy: contiguous and 16 bytes aligned."""
    x = x.contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()


def _words(x: Tensor) -> Tensor:
    """bf16 pairs as words."""
    return x.view(torch.uint32)


OPS = {
    "moe.gate": gate,
    "moe.dispatch": dispatch,
    "moe.experts": experts,
    "moe.combine": combine,
    "moe.swiglu": swiglu,
}
