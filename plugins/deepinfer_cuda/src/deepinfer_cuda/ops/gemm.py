"""Matrix products of bf16 or quantised rows with FP8 and bf16 weights (``spec/kernels.md`` 2.6)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_cuda import products
from deepinfer_cuda.grouped import grouped
from deepinfer_cuda.ops.quant import cast_per_token
from deepinfer_cuda.plain import plain_op
from deepinfer_cuda.tensors import PreparedWeight, QuantTensor

RESULTS = (torch.bfloat16, torch.float32)


def dense(
    a: Any, w: Any, *, out_dtype: torch.dtype | None = None, acc: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """``a`` ``[..., K]`` times ``w`` ``[K, N]`` -> ``[..., N]``; fp32 accumulation, one rounding.

    :param a: bf16, or a QuantTensor with power-of-two scales. Everything else is served by the op of ``cpu``.
    :param out_dtype: None keeps the dtype of ``a`` (bf16 for a QuantTensor).
    :param acc: fp32 ``[..., N]`` added before rounding.
    :raises ShapeContractError: shapes or dtypes do not fit.
    """
    x = exact_rows(a, w, 2)
    shape = None if x is None or x.shape[-1] != w.inputs else (*x.shape[:-1], w.outputs)
    if x is None or shape is None or not _fits(shape, out_dtype, out, acc):
        result: Tensor = plain_op("gemm.dense")(a, w, out_dtype=out_dtype, acc=acc, out=out)
        return result
    dtype = out_dtype or (torch.bfloat16 if out is None else out.dtype)
    rows = x.reshape(-1, w.inputs).contiguous()
    if acc is not None:
        y = _product(rows, w, torch.float32, None).add_(acc.reshape(-1, w.outputs))
        return out.copy_(y.view(shape)) if out is not None else y.view(shape).to(dtype)
    whole = out.view(-1, w.outputs) if out is not None and _is_whole(out) else None
    y = _product(rows, w, dtype, whole)
    if out is None:
        return y.view(shape)
    return out if whole is not None else out.copy_(y.view(shape))


def exact_rows(a: Any, w: Any, dims: int) -> Tensor | None:
    """``a`` in bf16 without a rounding, or None where no kernel multiplies it by ``w``, of ``dims`` dimensions."""
    if not isinstance(w, PreparedWeight) or not w.is_exact or len(w.size) != dims or w.device.type != "cuda":
        return None
    if isinstance(a, QuantTensor):
        return a.exact if a.sf_kind != "f32" and a.sf.is_cuda else None
    if not isinstance(a, Tensor) or a.dtype != torch.bfloat16 or not a.is_cuda or not a.dim():
        return None
    return a if a.stride(-1) == 1 or a.shape[-1] <= 1 else None


def _fits(shape: tuple[int, ...], out_dtype: torch.dtype | None, out: Tensor | None, acc: Tensor | None) -> bool:
    if out_dtype is not None and out_dtype not in RESULTS:
        return False
    if out is not None and (out.shape != shape or out.dtype not in ((out_dtype,) if out_dtype else RESULTS)):
        return False
    return acc is None or (acc.shape == shape and acc.dtype == torch.float32)


def _is_whole(out: Tensor) -> bool:
    """Whether a kernel can write ``out`` as it lies, 16 bytes at a time."""
    return out.is_contiguous() and out.data_ptr() % 16 == 0


def _product(x: Tensor, w: PreparedWeight, dtype: torch.dtype, out: Tensor | None) -> Tensor:
    rows = x.shape[0]
    if not rows:
        return torch.empty(0, w.outputs, dtype=dtype, device=x.device) if out is None else out
    cut = products.takes(w, rows)
    if cut is None:
        return products.many_rows(x, w, dtype, out)
    y = torch.empty(rows, w.outputs, dtype=dtype, device=x.device) if out is None else out
    products.few_rows(x, w, cut, y)
    return y


def einsum_heads(a: Any, w: Any, *, out_fp8: bool = False, out: Tensor | None = None) -> Any:
    """``z[t, g] = a[t, g] @ w[g]``: ``a`` ``[T, G, K]``, ``w`` ``[G, K, N]`` -> ``[T, G, N]`` in bf16.

    ``out_fp8`` quantises the result (E4M3, UE8M0, groups of 32).

    :raises ShapeContractError: shapes do not fit.
    """
    x = exact_rows(a, w, 3)
    if x is None or x.dim() != 3 or (x.shape[1], x.shape[2]) != w.shape[:2]:
        return plain_op("gemm.einsum_heads")(a, w, out_fp8=out_fp8, out=out)
    shape = (x.shape[0], w.shape[0], w.outputs)
    if out is not None and (out.shape != shape or out.dtype != torch.bfloat16):
        return plain_op("gemm.einsum_heads")(a, w, out_fp8=out_fp8, out=out)
    whole = out is not None and _is_whole(out)
    y = out if out is not None and whole else torch.empty(shape, dtype=torch.bfloat16, device=x.device)
    if x.shape[0]:
        cut = products.takes(w, x.shape[0])
        if cut is None:
            products.many_heads(x, w, y)
        else:
            products.few_rows(x.contiguous().flatten(1), w, cut, y.view(x.shape[0], -1), groups=w.shape[0])
    if out_fp8:
        return cast_per_token(y)
    return y if out is None or whole else out.copy_(y)


OPS = {"gemm.dense": dense, "gemm.grouped": grouped, "gemm.einsum_heads": einsum_heads}
