"""One row for each symbol of a vendor library that an op can be served with.

=============  =====================================  ==========================================
library        distribution                           ops
=============  =====================================  ==========================================
flashmla       deepinfer-flashmla                     attn.sparse_prefill, attn.sparse_decode
gemm           deepinfer-gemm, or sgl-deep-gemm       gemm.dense
ep             deepinfer-ep                           moe.dispatch, moe.combine of several ranks
deepselect     deep-select (from its repository)      index.topk
tile-kernels   tile-kernels                           quant.cast_per_token, moe.gate
=============  =====================================  ==========================================
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import frozen

from deepinfer_cuda.vendor import deep_ep, deep_gemm, deep_select, flash_mla, tile_kernels
from deepinfer_cuda.vendor.loading import Vendor

HOPPER = ("sm_90", "sm_100", "sm_103")
BLACKWELL = ("sm_100", "sm_103")

VENDORS = {
    vendor.name: vendor
    for vendor in (
        Vendor(
            "flashmla", (("deepinfer-flashmla", "1.0"),), "pip install --no-build-isolation 'deepinfer-cuda[flashmla]'"
        ),
        Vendor(
            "gemm",
            (("deepinfer-gemm", "2.8.2"), ("sgl-deep-gemm", "0.2.5")),
            "pip install --no-build-isolation 'deepinfer-cuda[gemm]'",
        ),
        Vendor("ep", (("deepinfer-ep", "2.5"),), "pip install --no-build-isolation 'deepinfer-cuda[ep]'"),
        Vendor(
            "deepselect",
            (("deep-select", "0"),),
            "build it from https://github.com/deepseek-ai/DeepSelect, for sm_90a by its build option",
        ),
        Vendor("tile-kernels", (("tile-kernels", "2.1"),), "pip install 'deepinfer-cuda[tile-kernels]' on Python 3.12"),
    )
}


@frozen
class Binding:
    """An op, the symbols that serve it, and when.

    :ivar symbols: (module, attribute) of each, in the order in which ``call`` takes them, before the op's arguments.
    :ivar arches: architectures that the library has kernels for.
    :ivar fits: whether it takes these arguments of the op; others go to our own kernel. Looks at shapes alone. None:
        what is served is no op of one rank, and ``call`` makes the object that serves it.
    """

    op: str
    vendor: str
    symbols: tuple[tuple[str, str], ...]
    arches: tuple[str, ...]
    call: Callable[..., Any]
    fits: Callable[..., bool] | None = None


TABLE = (
    Binding(
        "attn.sparse_prefill",
        "flashmla",
        (("flash_mla", "flash_mla_sparse_fwd"),),
        HOPPER,
        flash_mla.call_prefill,
        flash_mla.fits_prefill,
    ),
    Binding(
        "attn.sparse_decode",
        "flashmla",
        (("flash_mla", "flash_mla_with_kvcache"), ("flash_mla", "get_mla_metadata")),
        BLACKWELL,  # 1.0 has the caches of 528 and 288 bytes there alone
        flash_mla.call_decode,
        flash_mla.fits_decode,
    ),
    Binding("gemm.dense", "gemm", (("deep_gemm", "bf16_gemm_nt"),), HOPPER, deep_gemm.call_dense, deep_gemm.fits_dense),
    Binding(
        "index.topk",
        "deepselect",
        (("deep_select.interface", "topk"),),
        HOPPER,
        deep_select.call_topk,
        deep_select.fits_topk,
    ),
    Binding(
        "quant.cast_per_token",
        "tile-kernels",
        (("tile_kernels.quant", "per_token_cast"),),
        HOPPER,
        tile_kernels.call_cast,
        tile_kernels.fits_cast,
    ),
    Binding(
        "moe.gate",
        "tile-kernels",
        (("tile_kernels.moe", "moe_topk_gate_forward"),),
        HOPPER,
        tile_kernels.call_gate,
        tile_kernels.fits_gate,
    ),
    Binding("moe.dispatch", "ep", (("deep_ep", "EPBuffer"),), HOPPER, deep_ep.RankExchange),
)
