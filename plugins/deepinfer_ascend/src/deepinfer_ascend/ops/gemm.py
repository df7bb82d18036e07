"""Matrix products (``spec/kernels.md`` 2.6): DeepGEMM where it takes the operands, the plain op otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from deepinfer_ascend import vendor
from deepinfer_ascend.ops.quant import cast_per_token
from deepinfer_ascend.plain import plain_op
from deepinfer_ascend.routing import SEGMENT, aligned_places
from deepinfer_ascend.tensors import PreparedWeight, QuantTensor

RECIPE = (1, 1, 32)
"""A scale for one row and 32 inputs of either operand."""
K_MULTIPLE = 128
FLOATS = (torch.bfloat16, torch.float32)


def dense(
    a: Any, w: Any, *, out_dtype: torch.dtype | None = None, acc: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """``a`` ``[..., K]`` times ``w`` ``[K, N]`` -> ``[..., N]``; fp32 accumulation, one rounding.

    :param a: bf16 with a bf16 weight, or FP8 with an FP8 or FP4 weight, take a kernel; everything else the plain op.
    :param out_dtype: None keeps the dtype of ``a`` (bf16 for a QuantTensor).
    :param acc: fp32 ``[..., N]`` added before rounding.
    :raises ShapeContractError: shapes or dtypes do not fit.
    """
    call = _kernel(a, w)
    shape = (*a.shape[:-1], w.shape[-1])
    if call is None or not _fits(shape, out_dtype, acc, out):
        return plain_op("gemm.dense")(a, w, out_dtype=out_dtype, acc=acc, out=out)
    dtype = out_dtype or (torch.bfloat16 if out is None else out.dtype)
    y = torch.empty(shape, dtype=torch.float32 if acc is not None else dtype, device=a.device)
    flat = y.view(-1, shape[-1])
    if acc is not None:
        y.copy_(acc)
    call(flat, None if acc is None else flat)
    return out.copy_(y) if out is not None else y.to(dtype)


def _kernel(a: Any, w: Any) -> Any:
    """What writes the product into ``(d, c)``; None: no kernel takes these operands."""
    if not isinstance(w, PreparedWeight) or len(w.shape) != 2 or a.shape[-1] != w.shape[0] or not a.shape.numel():
        return None
    if isinstance(a, QuantTensor):
        if not _is_scaled(a, w):
            return None
        pair = (a.data.view(torch.float8_e4m3fn).view(-1, w.shape[0]), a.words)
        product = vendor.symbol("deep_gemm.fp8_fp4_gemm_nt", a)
        return lambda d, c: product(pair, (w.stored, w.words), d, c, recipe=RECIPE)
    if not isinstance(a, Tensor) or a.dtype != torch.bfloat16 or w.fmt != "bf16" or a.stride(-1) != 1:
        return None
    rows, product = a.reshape(-1, w.shape[0]), vendor.symbol("deep_gemm.bf16_gemm_nt", a)
    return lambda d, c: product(rows, w.stored, d, c)


def _is_scaled(a: QuantTensor, w: PreparedWeight) -> bool:
    """FP8 activations, an FP8 or FP4 weight, words of both, and inputs that a kernel takes."""
    return (
        a.fmt == "e4m3"
        and w.fmt in ("e4m3", "e2m1")
        and a.words is not None
        and w.words is not None
        and w.shape[-2] % K_MULTIPLE == 0
        and a.data.is_contiguous()
    )


def _fits(shape: tuple[int, ...], out_dtype: torch.dtype | None, acc: Tensor | None, out: Tensor | None) -> bool:
    if out_dtype is not None and out_dtype not in FLOATS:
        return False
    if out is not None and (out.shape != shape or out.dtype not in ((out_dtype,) if out_dtype else FLOATS)):
        return False
    return acc is None or (acc.shape == shape and acc.dtype == torch.float32)


def grouped(
    a: Any,
    w: Any,
    seg_ends: Tensor | Sequence[int],
    *,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Rows of ``a`` ``[M, K]`` sorted by group: group g owns rows ``[seg_ends[g-1], seg_ends[g])`` -> ``[M, N]``.

    FP8 rows with FP8 or FP4 weights take the kernel, whose segments begin at multiples of 128: rows are moved there and
    back. Rows past the last segment are undefined.

    :raises ShapeContractError: as the plain op, which serves everything else.
    """
    ends = _ends(seg_ends, w, a)
    into = out is None or (out.dtype == torch.bfloat16 and out.shape == (a.shape[0], w.shape[-1]))
    if ends is None or out_dtype not in (None, torch.bfloat16) or not into or not takes_aligned(a, w):
        return plain_op("gemm.grouped")(a, w, seg_ends, out_dtype=out_dtype, out=out)
    sizes = ends.diff(prepend=ends.new_zeros(1))
    number = torch.arange(a.shape[0], device=ends.device)
    places, aligned = aligned_places(torch.searchsorted(ends, number, right=True), sizes)
    # As many rows as there can be: each segment may end 127 rows before the next begins.
    rows = a.shape[0] + len(sizes) * (SEGMENT - 1)
    y = aligned_product(a.moved(places, -(-rows // SEGMENT) * SEGMENT), w, aligned)[places]
    return y if out is None else out.copy_(y)


def _ends(seg_ends: Tensor | Sequence[int], w: Any, a: Any) -> Tensor | None:
    """int64 ends of segments, where there are rows and the host sees nothing wrong; None leaves it to the plain op."""
    if len(a.shape) != 2 or not a.shape[0] or len(seg_ends) != w.shape[0]:
        return None
    if isinstance(seg_ends, Tensor) and seg_ends.device.type != "cpu":
        return seg_ends.long()
    ends = torch.as_tensor(seg_ends)
    if ends.dtype not in (torch.int32, torch.int64) or ends.dim() != 1:
        return None
    fits = bool((ends.diff(prepend=ends.new_zeros(1)) >= 0).all()) and int(ends[-1]) <= a.shape[0]
    return ends.to(a.device, torch.int64) if fits else None


def takes_aligned(a: Any, w: Any) -> bool:
    """Whether :func:`aligned_product` takes these operands."""
    if not isinstance(w, PreparedWeight) or not isinstance(a, QuantTensor):
        return False
    return len(w.shape) == 3 and a.shape[-1] == w.shape[1] and _is_scaled(a, w)


def aligned_product(a: QuantTensor, w: PreparedWeight, ends: Tensor) -> Tensor:
    """bf16 ``[M, N]`` of rows whose segments begin at multiples of 128; ``ends`` int32 ``[E]``. Rows between segments
    are undefined."""
    y = torch.empty(a.shape[0], w.shape[2], dtype=torch.bfloat16, device=a.device)
    product = vendor.symbol("deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous", a)
    pair = (a.data.view(torch.float8_e4m3fn), a.words)
    product(pair, (w.stored, w.words), y, ends, recipe=RECIPE, use_psum_layout=True)
    return y


def einsum_heads(a: Any, w: Any, *, out_fp8: bool = False, out: Tensor | None = None) -> Any:
    """``z[t, g] = a[t, g] @ w[g]``: ``a`` ``[T, G, K]``, ``w`` ``[G, K, N]`` -> ``[T, G, N]`` in bf16.

    ``out_fp8`` quantises the result (E4M3, UE8M0, groups of 32).

    :raises ShapeContractError: shapes do not fit.
    """
    stack = isinstance(w, PreparedWeight) and len(w.shape) == 3
    fits = stack and isinstance(a, QuantTensor) and len(a.shape) == 3 and a.shape[1:] == w.shape[:2]
    shape = (a.shape[0], w.shape[0], w.shape[-1]) if fits else ()
    if not fits or not _is_scaled(a, w) or not a.shape[0] or (out is not None and not _takes_out(out, shape)):
        y = plain_op("gemm.einsum_heads")(a, w, out=out)
    else:
        y = torch.empty(shape, dtype=torch.bfloat16, device=a.device)
        product = vendor.symbol("deep_gemm.fp8_einsum", a)
        pair = (a.data.view(torch.float8_e4m3fn), a.words)
        product("bhr,hdr->bhd", pair, (w.stored, w.words), y, recipe=RECIPE)
        y = y if out is None else out.copy_(y)
    return cast_per_token(y) if out_fp8 else y


def _takes_out(out: Tensor, shape: tuple[int, ...]) -> bool:
    return tuple(out.shape) == shape and out.dtype == torch.bfloat16


OPS = {"gemm.dense": dense, "gemm.grouped": grouped, "gemm.einsum_heads": einsum_heads}
