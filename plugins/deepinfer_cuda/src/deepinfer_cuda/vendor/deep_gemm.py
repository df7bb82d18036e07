"""DeepGEMM: products of bf16, both operands with K innermost ("nt")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

ALIGNED = 64
"""K and N are multiples of it: a swizzled tile of 128 bytes of bf16."""


def fits_dense(a: Any, w: Any, *, out_dtype: torch.dtype | None = None, acc: Tensor | None = None, **_: Any) -> bool:
    """bf16 in and out, without an accumulator; a weight whose values bf16 holds."""
    k, n = w.shape[-2:]
    plain = isinstance(a, Tensor)
    return (
        (a.dtype == torch.bfloat16 and a.stride(-1) == 1 if plain else a.sf_kind == "ue8m0")
        and w.is_exact
        and len(w.shape) == 2
        and acc is None
        and out_dtype in (None, torch.bfloat16)
        and k % ALIGNED == 0
        and n % ALIGNED == 0
        and a.shape[:-1].numel() > 0
    )


def call_dense(
    product: Callable[..., Any],
    a: Any,
    w: Any,
    *,
    out_dtype: torch.dtype | None = None,
    acc: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """``gemm.dense`` through ``bf16_gemm_nt``."""
    values: Tensor = a if isinstance(a, Tensor) else a.exact
    shape = (*values.shape[:-1], w.shape[-1])
    result = values.new_empty(shape) if out is None or not out.is_contiguous() else out
    product(values.reshape(-1, values.shape[-1]), w.exact, result.view(-1, w.shape[-1]))
    return result if out is None or out is result else out.copy_(result)
