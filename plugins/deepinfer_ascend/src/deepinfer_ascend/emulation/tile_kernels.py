"""tile-kernels: casts of activations, the choice of experts from their logits, and streams of hyper-connections."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from deepinfer_ascend.contracts import check, misfit
from deepinfer_ascend.plain import plain_op
from deepinfer_ascend.scale_words import GROUP, SPAN, pack
from deepinfer_ascend.tensors import PlainWeight

LANES = 128
"""bf16 values of a vector register."""
FLOOR = 1e-6
"""Least magnitude of a dot product below its root, in the model."""


def per_token_cast(
    x: Tensor,
    fmt: str,
    num_per_channels: int,
    x_block_size: tuple[int, int] | None = None,
    use_tma_aligned_col_major_sf: bool = False,
    round_sf: bool = False,
    use_packed_ue8m0: bool = False,
    use_e4m3_sf: bool = False,
    stochastic_cast: bool = False,
    out: Any = None,
) -> tuple[Tensor, Tensor]:
    """bf16 ``[T, K]`` -> FP8 codes ``[T, K]`` or FP4 codes int8 ``[T, K / 2]``, and column-major words."""
    call = "per_token_cast"
    check(call, "x", x, torch.bfloat16, None, None)
    if x.shape[1] % SPAN:
        raise misfit(call, "x", f"of a multiple of {SPAN} columns: a scale word is two groups", x.shape[1])
    if x_block_size is not None or use_e4m3_sf or stochastic_cast or out is not None:
        given = (x_block_size, use_e4m3_sf, stochastic_cast, out)
        raise misfit(call, "x_block_size, use_e4m3_sf, stochastic_cast, out", "left out", given)
    scales = (num_per_channels, use_tma_aligned_col_major_sf, round_sf, use_packed_ue8m0)
    if scales != (GROUP, True, True, True) or fmt not in ("e4m3", "e2m1"):
        raise misfit(call, "fmt, scales", f"e4m3 or e2m1, packed UE8M0 in groups of {GROUP}", (fmt, *scales))
    q = plain_op("quant.cast_per_token")(x, fmt=fmt, group=GROUP, sf="ue8m0")
    data = q.data.view(torch.float8_e4m3fn if fmt == "e4m3" else torch.int8)
    return data.contiguous(), pack(q.sf.view(torch.uint8))


def moe_topk_gate_forward(
    logits: Tensor,
    num_topk: int,
    use_shared_as_routed: bool,
    num_shared_experts: int,
    routed_scaling_factor: float,
    ep_rank: int,
    scoring_func: str = "sqrtsoftplus",
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    image_bias: Tensor | None = None,
    image_token_mask: Tensor | None = None,
    fix_routing_mask: Tensor | None = None,
    to_physical_map: Tensor | None = None,
    logical_count: Tensor | None = None,
    unmapped_topk_idx: Tensor | None = None,
    force_random: Tensor | None = None,
    out: Any = None,
    scores: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The best ``num_topk`` experts of each row of fp32 logits ``[T, E]``: int64 ids and fp32 weights."""
    call = "moe_topk_gate_forward"
    check(call, "logits", logits, torch.float32, None, None)
    if use_shared_as_routed or num_shared_experts or ep_rank:
        given = (use_shared_as_routed, num_shared_experts, ep_rank)
        raise misfit(call, "shared experts, ep_rank", "none, of one rank", given)
    others = (fix_routing_mask, to_physical_map, logical_count, unmapped_topk_idx, force_random, out, scores)
    if scoring_func != "sqrtsoftplus" or any(given is not None for given in others):
        raise misfit(call, "scoring_func, options behind the biases", "sqrtsoftplus, and left out", scoring_func)
    experts = logits.shape[1]
    if bias is None:
        raise misfit(call, "bias", f"fp32 [{experts}]", None)
    # Times the unit matrix each logit is itself: what the plain op makes of them is what it makes of its own.
    unit = PlainWeight(call, torch.eye(experts))
    return plain_op("moe.gate")(  # type: ignore[no-any-return]
        logits, unit, bias, k=num_topk, scale=routed_scaling_factor, mask=mask, bias_image=image_bias,
        image_rows=image_token_mask,
    )  # fmt: skip


def expand_to_mhc_fwd(x: Tensor, o: Tensor) -> None:
    """bf16 ``[T, H]`` into each stream of ``o`` ``[T, c, H]``."""
    call = "expand_to_mhc_fwd"
    check(call, "x", x, torch.bfloat16, None, None)
    check(call, "o", o, torch.bfloat16, x.shape[0], None, x.shape[1])
    if x.shape[1] % LANES:
        raise misfit(call, "x", f"of a multiple of {LANES} columns", x.shape[1])
    o.copy_(plain_op("mhc.expand")(x, o.shape[1]))


def mhc_post_fwd(
    x: Tensor, residual: Tensor, post_layer_mix: Tensor, comb_res_mix: Tensor, out: Tensor | None = None
) -> Tensor:
    """``out_j = post_j x + sum_i comb_ij residual_i`` of bf16 ``[b, T, c, H]`` streams; all contiguous."""
    call = "mhc_post_fwd"
    check(call, "residual", residual, torch.bfloat16, None, None, None, None)
    batch, tokens, streams, width = residual.shape
    check(call, "x", x, torch.bfloat16, batch, tokens, width)
    check(call, "post_layer_mix", post_layer_mix, torch.float32, batch, tokens, streams, 1)
    check(call, "comb_res_mix", comb_res_mix, torch.float32, batch, tokens, streams, streams)
    if not (x.is_contiguous() and post_layer_mix.is_contiguous() and comb_res_mix.is_contiguous()):
        raise misfit(call, "x, post_layer_mix, comb_res_mix", "contiguous", "strides")
    # The plain op multiplies by rows of destinations: as it lays them out, so that its bits are the same.
    comb = comb_res_mix.flatten(0, 1).transpose(1, 2).contiguous().transpose(1, 2)
    made = plain_op("mhc.post")(x.flatten(0, 1), residual.flatten(0, 1), post_layer_mix.view(-1, streams), comb)
    return made.view(residual.shape) if out is None else out.copy_(made.view(residual.shape))


def mhc_pre_apply_mix_fwd(x: Tensor, mix: Tensor, o: Tensor) -> None:
    """``o = sum_j mix_j x_j`` of bf16 streams ``[T, c, H]``, ``mix`` fp32 ``[T, c]``."""
    call = "mhc_pre_apply_mix_fwd"
    check(call, "x", x, torch.bfloat16, None, None, None)
    check(call, "mix", mix, torch.float32, *x.shape[:2])
    check(call, "o", o, torch.bfloat16, x.shape[0], x.shape[2])
    o.copy_(plain_op("mhc.head")(x, mix))


def engram_gate_fwd(
    hidden_states: Tensor,
    kv: Tensor,
    weight_fused: Tensor,
    eps: float,
    clamp_value: float,
    save_for_backward: bool = True,
    image_token_mask: Tensor | None = None,
    inplace: bool = False,
) -> tuple[Tensor, None, None, None, None]:
    """The gate of bf16 streams ``[T, c, H]`` by keys and value ``[T, c + 1, H]``; True in the mask is an image row."""
    call = "engram_gate_fwd"
    check(call, "hidden_states", hidden_states, torch.bfloat16, None, None, None)
    tokens, streams, width = hidden_states.shape
    check(call, "kv", kv, torch.bfloat16, tokens, streams + 1, width)
    check(call, "weight_fused", weight_fused, torch.float32, streams, width)
    if image_token_mask is not None:
        check(call, "image_token_mask", image_token_mask, torch.bool, tokens)
    if save_for_backward or inplace or clamp_value != FLOOR or streams != 4 or width % LANES:
        given = (save_for_backward, inplace, clamp_value, streams, width)
        wanted = f"off, {FLOOR}, 4, a multiple of {LANES}"
        raise misfit(call, "options, clamp_value, streams, width", wanted, given)
    params = SimpleNamespace(weight=weight_fused, norm_eps=eps)
    mask = None if image_token_mask is None else ~image_token_mask
    return plain_op("engram.gate")(hidden_states, kv.flatten(1), params, mask=mask), None, None, None, None
