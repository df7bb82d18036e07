"""Every symbol of a vendor library that an op calls: where it is, and in which distribution.

Signatures are those of the libraries for CUDA; the Ascend builds are said to have the same, and none was at hand.
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
