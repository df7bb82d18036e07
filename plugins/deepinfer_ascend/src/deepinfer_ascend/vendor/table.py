"""Every symbol of a vendor library that an op calls: where it is, and in which distribution.

Signatures of torch-npu and of tile-kernels, which has its code for Ascend in one wheel with that for CUDA, are compared
with the real ones (``nox -s npu_schemas``). Those of the other libraries are those for CUDA: the Ascend builds are said
to have the same, and none was at hand.
"""

from __future__ import annotations

from attrs import frozen


@frozen
class Symbol:
    """:ivar module: to import. :ivar attribute: of it. :ivar distribution: that has it, for messages.
    :ivar ops: that call it."""

    module: str
    attribute: str
    distribution: str
    ops: tuple[str, ...]


_GEMM = "the Ascend build of DeepGEMM"
TABLE = {
    f"{symbol.module.split('.')[0]}.{symbol.attribute}": symbol
    for symbol in (
        Symbol("torch_npu", "npu_format_cast", "torch-npu", ("quant.prepare_weight",)),
        Symbol("tile_kernels.quant", "per_token_cast", "tile-kernels", ("quant.cast_per_token",)),
        Symbol("tile_kernels.moe", "moe_topk_gate_forward", "tile-kernels", ("moe.gate",)),
        Symbol("tile_kernels.engram", "engram_gate_fwd", "tile-kernels", ("engram.gate",)),
        Symbol("tile_kernels.mhc", "expand_to_mhc_fwd", "tile-kernels", ("mhc.expand",)),
        Symbol("tile_kernels.mhc", "mhc_post_fwd", "tile-kernels", ("mhc.post",)),
        Symbol("tile_kernels.mhc", "mhc_pre_apply_mix_fwd", "tile-kernels", ("mhc.head",)),
        Symbol("deep_gemm", "bf16_gemm_nt", _GEMM, ("gemm.dense",)),
        Symbol("deep_gemm", "fp8_fp4_gemm_nt", _GEMM, ("gemm.dense",)),
        Symbol("deep_gemm", "fp8_einsum", _GEMM, ("gemm.einsum_heads",)),
        Symbol("deep_gemm", "m_grouped_fp8_fp4_gemm_nt_contiguous", _GEMM, ("gemm.grouped", "moe.experts")),
        Symbol("deep_gemm", "fp8_fp4_mqa_logits", _GEMM, ("index.logits",)),
        Symbol("deep_gemm", "fp8_fp4_paged_mqa_logits", _GEMM, ("index.logits",)),
        Symbol("deep_gemm", "get_paged_mqa_logits_metadata", _GEMM, ("index.logits",)),
        Symbol("deep_select.interface", "topk", "the Ascend build of DeepSelect", ("index.topk",)),
        Symbol("flash_mla", "flash_mla_sparse_fwd", "the Ascend build of FlashMLA", ("attn.sparse_prefill",)),
        Symbol("flash_mla", "flash_mla_with_kvcache", "the Ascend build of FlashMLA", ("attn.sparse_decode",)),
        Symbol("flash_mla", "get_mla_metadata", "the Ascend build of FlashMLA", ("attn.sparse_decode",)),
    )
}
"""Short name (top package and attribute) -> symbol."""

UNBOUND = {
    "tile_kernels.swiglu_forward_and_per_token_cast": "it casts before it rounds to bf16: other codes than moe.swiglu",
    "tile_kernels.apply_rotary": "whether it turns with one rounding, as transform.rotary must to the bit, is not told",
    "tile_kernels.mhc_pre_big_fuse_fwd": "it takes split sums of deep_gemm.tf32_hc_prenorm_gemm, whose Ascend build is "
    "said to have one split, and was not at hand",
    "tile_kernels.engram_hash": "it takes prime tables as int32 rows of layers; engram.hash has one layer, in int64",
    "deep_ep.EPBuffer": "experts of several ranks are not offered: moe.dispatch and moe.combine are of one rank",
    "deep_gemm.fp8_fp4_mega_moe": "the Ascend build is said to have it; its packed weights were not at hand",
    "torch_npu.npu_fusion_attention": "it serves images, which no model here takes",
}
"""Symbols that a device may have and no op calls -> why. The first day's command lists them."""
