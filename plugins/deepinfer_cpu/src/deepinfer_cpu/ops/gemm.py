"""Matrix products: dequantised fp32 operands, fp32 accumulation, one rounding (``spec/kernels.md`` 2.6).

A row's bits must not depend on how many others stand beside it (``spec/model.md`` 6). The BLAS library sums a row in
the same order for any number of rows, with three exceptions that are avoided here: a single row (so it is computed as
two), long inner dimensions, which are cut differently for few and for many rows (so they are cut here, always alike),
and a single column (which is no product here, but a sum of each row). The tests pin this; a library that behaves
otherwise fails them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from deepinfer_cpu.contracts import FLOATS, check_floats, check_like, shape_error
from deepinfer_cpu.tensors import Quantised, Weight

LONGEST_INNER = 768
"""Inner dimensions up to this are summed in one order by the library, for any number of rows and of threads."""
INNER_CUT = 512


def product(a: Tensor, matrix: Tensor) -> Tensor:
    """fp32 ``[M, K] @ [K, N]``, each row as if it were alone."""
    if a.shape[0] == 1:
        return product(a.expand(2, -1), matrix)[:1]
    inner = matrix.shape[0]
    if matrix.shape[1] == 1:
        return (a * matrix.view(1, -1)).sum(1, keepdim=True)
    if inner <= LONGEST_INNER:
        return torch.mm(a, matrix)
    y = torch.mm(a[:, :INNER_CUT], matrix[:INNER_CUT])
    for begin in range(INNER_CUT, inner, INNER_CUT):
        y += torch.mm(a[:, begin : begin + INNER_CUT], matrix[begin : begin + INNER_CUT])
    return y


def operand(op: str, a: Tensor | Quantised) -> tuple[Tensor, torch.dtype]:
    """fp32 values of an activation, and the dtype that a result takes by default."""
    if not isinstance(a, Tensor):
        return a.values, torch.bfloat16
    check_floats(op, "a", a)
    return (a if a.dtype == torch.float32 else a.float()), a.dtype


def dense(
    a: Tensor | Quantised,
    w: Weight,
    *,
    out_dtype: torch.dtype | None = None,
    acc: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """``a`` ``[..., K]`` times ``w`` ``[K, N]`` -> ``[..., N]``.

    :param out_dtype: None keeps the dtype of ``a`` (bf16 for a QuantTensor).
    :param acc: fp32 ``[..., N]`` added before rounding.
    """
    values, dtype = operand("gemm.dense", a)
    matrix = w.matrix
    if matrix.dim() != 2 or values.shape[-1] != matrix.shape[0]:
        raise shape_error("gemm.dense", "a", f"[..., {matrix.shape[-2]}] for weight {w.name}", list(values.shape))
    if acc is not None or out is not None or out_dtype is not None:
        shape = (*values.shape[:-1], matrix.shape[1])
        if acc is not None:
            check_like("gemm.dense", "acc", acc, shape, torch.float32)
        _check_result("gemm.dense", shape, out_dtype, out)
    if values.dim() == 2:
        y = product(values, matrix)
    else:
        y = product(values.reshape(-1, values.shape[-1]), matrix).view(*values.shape[:-1], matrix.shape[1])
    if acc is not None:
        y = y + acc
    if out is not None:
        return out.copy_(y)
    wanted = dtype if out_dtype is None else out_dtype
    return y if wanted == torch.float32 else y.to(wanted)


def _check_result(op: str, shape: tuple[int, ...], out_dtype: torch.dtype | None, out: Tensor | None) -> None:
    if out_dtype is not None and out_dtype not in FLOATS:
        raise shape_error(op, "out_dtype", "bf16 or fp32", out_dtype)
    if out is not None:
        check_like(op, "out", out, shape, *(FLOATS if out_dtype is None else (out_dtype,)))


def grouped(
    a: Tensor | Quantised,
    w: Weight,
    seg_ends: Tensor | Sequence[int],
    *,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Rows of ``a`` ``[M, K]`` sorted by group: group g owns rows ``[seg_ends[g-1], seg_ends[g])`` -> ``[M, N]``.

    ``w`` is a stack ``[E, K, N]``. Rows past the last segment are zero. Ends that lie on a device are not looked at by
    the host, which therefore checks their number only.
    """
    values, dtype = operand("gemm.grouped", a)
    matrix = w.matrix
    if matrix.dim() != 3 or values.dim() != 2 or values.shape[-1] != matrix.shape[1]:
        raise shape_error("gemm.grouped", "a", f"[M, {matrix.shape[-2]}] for weight {w.name}", list(values.shape))
    _check_result("gemm.grouped", (values.shape[0], matrix.shape[2]), out_dtype, out)
    if isinstance(seg_ends, Tensor) and seg_ends.device.type != "cpu":
        if seg_ends.shape != matrix.shape[:1]:
            raise shape_error("gemm.grouped", "seg_ends", f"{matrix.shape[0]} segments", list(seg_ends.shape))
        rows = torch.arange(values.shape[0], device=values.device)
        y = of_groups(values, matrix, torch.searchsorted(seg_ends.long(), rows, right=True))
    else:
        ends = seg_ends.tolist() if isinstance(seg_ends, Tensor) else list(seg_ends)
        _check_ends(ends, matrix.shape[0], values.shape[0])
        y = values.new_zeros(values.shape[0], matrix.shape[2])
        for group, (begin, end) in enumerate(pairwise([0, *ends])):
            if end > begin:
                y[begin:end] = product(values[begin:end], matrix[group])
    if out is not None:
        return out.copy_(y)
    return y.to(dtype if out_dtype is None else out_dtype)


def of_groups(values: Tensor, matrix: Tensor, group: Tensor) -> Tensor:
    """fp32 ``[M, K]`` rows times the matrix of their ``group`` int ``[M]``; zeros for one that does not exist.

    How many rows a group has is not asked: each matrix multiplies all of them, and its own are kept. So nothing waits
    for the device, and nothing depends on what is there. That is ``E`` times the arithmetic of a grouped product.
    """
    y = values.new_zeros(values.shape[0], matrix.shape[2])
    if values.shape[0]:
        for number in range(matrix.shape[0]):
            y = torch.where((group == number).unsqueeze(1), product(values, matrix[number]), y)
    return y


def _check_ends(ends: Sequence[int], groups: int, rows: int) -> None:
    if len(ends) != groups:
        raise shape_error("gemm.grouped", "seg_ends", f"{groups} segments", len(ends))
    if any(end < begin for begin, end in pairwise([0, *ends, rows])):
        raise shape_error("gemm.grouped", "seg_ends", f"ascending, at most {rows}", ends)


def einsum_heads(
    a: Tensor | Quantised, w: Weight, *, out_fp8: bool = False, out: Tensor | None = None
) -> Tensor | Quantised:
    """``z[t, g] = a[t, g] @ w[g]``: ``a`` ``[T, G, K]``, ``w`` ``[G, K, N]`` -> ``[T, G, N]`` in the dtype of ``a``.

    ``out_fp8`` quantises the result (E4M3, UE8M0, groups of 32).
    """
    from deepinfer_cpu.ops.quant import cast_per_token  # a sibling op, only for this option

    values, dtype = operand("gemm.einsum_heads", a)
    matrix = w.matrix
    if matrix.dim() != 3 or values.dim() != 3 or values.shape[1:] != matrix.shape[:2]:
        raise shape_error(
            "gemm.einsum_heads", "a", f"[T, {', '.join(map(str, matrix.shape[:-1]))}]", list(values.shape)
        )
    rows = values.shape[0]
    if out is not None:
        _check_result("gemm.einsum_heads", (rows, matrix.shape[0], matrix.shape[2]), None, out)
    if matrix.shape[1] > LONGEST_INNER:
        y = torch.stack([product(values[:, g], matrix[g]) for g in range(matrix.shape[0])], dim=1).to(dtype)
    else:
        if rows == 1:
            values = values.expand(2, -1, -1)
        y = torch.bmm(values.transpose(0, 1), matrix).transpose(0, 1)[:rows].to(dtype)
    if out_fp8:
        return cast_per_token(y)
    return y if out is None else out.copy_(y)
