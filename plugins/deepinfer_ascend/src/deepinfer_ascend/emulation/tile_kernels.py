"""tile-kernels: casts of activations, and the choice of experts from their logits."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_ascend.contracts import check, misfit
from deepinfer_ascend.plain import plain_op
from deepinfer_ascend.scale_words import GROUP, SPAN, pack
from deepinfer_ascend.tensors import PlainWeight


def per_token_cast(
    x: Tensor,
    fmt: str,
    num_per_channels: int,
    round_sf: bool = False,
    use_tma_aligned_col_major_sf: bool = False,
    use_packed_ue8m0: bool = False,
) -> tuple[Tensor, Tensor]:
    """bf16 ``[T, K]`` -> FP8 codes ``[T, K]`` or FP4 codes uint8 ``[T, K / 2]``, and column-major words."""
    call = "per_token_cast"
    check(call, "x", x, torch.bfloat16, None, None)
    if x.shape[1] % SPAN:
        raise misfit(call, "x", f"of a multiple of {SPAN} columns: a scale word is two groups", x.shape[1])
    given = (num_per_channels, round_sf, use_tma_aligned_col_major_sf, use_packed_ue8m0)
    if given != (GROUP, True, True, True) or fmt not in ("e4m3", "e2m1"):
        raise misfit(call, "fmt, scales", f"e4m3 or e2m1, packed UE8M0 in groups of {GROUP}", (fmt, *given))
    q = plain_op("quant.cast_per_token")(x, fmt=fmt, group=GROUP, sf="ue8m0")
    data = q.data.view(torch.float8_e4m3fn) if fmt == "e4m3" else q.data
    return data.contiguous(), pack(q.sf.view(torch.uint8))


def moe_topk_gate_forward(
    logits: Tensor,
    num_topk: int,
    use_shared_as_routed: bool,
    num_shared_experts: int,
    routed_scaling_factor: float,
    ep_rank: int,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    image_bias: Tensor | None = None,
    image_token_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The best ``num_topk`` experts of each row of fp32 logits ``[T, E]``: int64 ids and fp32 weights."""
    call = "moe_topk_gate_forward"
    check(call, "logits", logits, torch.float32, None, None)
    if use_shared_as_routed or num_shared_experts or ep_rank:
        given = (use_shared_as_routed, num_shared_experts, ep_rank)
        raise misfit(call, "shared experts, ep_rank", "none, of one rank", given)
    experts = logits.shape[1]
    if bias is None:
        raise misfit(call, "bias", f"fp32 [{experts}]", None)
    # Times the unit matrix each logit is itself: what the plain op makes of them is what it makes of its own.
    unit = PlainWeight(call, torch.eye(experts))
    return plain_op("moe.gate")(  # type: ignore[no-any-return]
        logits, unit, bias, k=num_topk, scale=routed_scaling_factor, mask=mask, bias_image=image_bias,
        image_rows=image_token_mask,
    )  # fmt: skip
