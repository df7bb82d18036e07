"""Which kernel multiplies: our own for few rows, the library's for many.

Both operands are exact in bf16, so the choice changes the order of a sum and nothing else. The library changes its
order with the number of rows; where a row's bits must not depend on its batch (``SETTINGS.batch_invariant``), our
kernel takes every size that it can, in tiles of one order.
"""

from __future__ import annotations

import torch
from attrs import define
from torch import Tensor

from deepinfer_cuda import packing
from deepinfer_cuda.tensors import PreparedWeight
from deepinfer_cuda.tl.dense.blocks import dense_rows
from deepinfer_cuda.tl.dense.streams import stream_rows
from deepinfer_cuda.tl.parts.cuts import FEW_ROWS, Cut, best_cut_of, cut_of, pipeline, rows_of_tile, stream_of

FP8_ROWS, MORE_ROWS = 32, 64
"""Rows up to which our kernel is ahead of the library's where a weight is FP8, half the bytes of what the library
reads; the second where it has ``LARGE`` values or ``LONG`` inputs. Else up to ``FEW_ROWS``."""
LARGE, LONG = 20_000_000, 4096


@define
class Settings:
    """``keep_bf16``: hold a bf16 copy of FP8 weights for products of many rows, twice their bytes, instead of unpacking
    them in every such product. ``batch_invariant``: a row's bits do not depend on its batch."""

    keep_bf16: bool = True
    batch_invariant: bool = False


SETTINGS = Settings()


def groups_of(w: PreparedWeight) -> int:
    """Weights of a stack."""
    return w.size[:-2].numel()


def keep_packed(w: PreparedWeight) -> None:
    """Hold FP8 codes that our kernel multiplies in its layout alone."""
    if packing.can_pack(w) and cut_of(w.outputs, w.inputs, groups_of(w)) is not None:
        w.keep_layout(packing.PACKED, packing.packed_codes, packing.unpacked_codes)
        w.layout("factors", packing.factors)


def _most(w: PreparedWeight) -> int:
    """Rows up to which our kernel is ahead."""
    if w.fmt != "e4m3":
        return FEW_ROWS
    return MORE_ROWS if w.size.numel() >= LARGE or w.inputs >= LONG else FP8_ROWS


def takes(w: PreparedWeight, rows: int) -> Cut | None:
    """How our kernel multiplies ``rows`` rows by ``w``; None: the library does."""
    if rows > _most(w) and not SETTINGS.batch_invariant:
        return None
    if w.fmt != "bf16" and not packing.can_pack(w):
        return None
    shape = w.outputs, w.inputs, groups_of(w)
    if w.fmt == "e4m3" and not SETTINGS.batch_invariant:
        return best_cut_of(*shape, rows)
    return cut_of(*shape)


def few_rows(x: Tensor, w: PreparedWeight, cut: Cut, y: Tensor, groups: int = 1) -> None:
    """``y`` ``[M, groups * out]`` of bf16 ``x`` ``[M, groups * in]``, both contiguous."""
    rows = x.shape[0]
    codes = w.fmt == "e4m3"
    tile = rows_of_tile(cut, rows, codes)
    weight = w.layout(packing.PACKED, packing.packed_codes) if codes else w.stored.view(groups * w.outputs, w.inputs)
    factors = w.layout("factors", packing.factors)
    stream = stream_of(w.outputs, w.inputs, groups, rows) if codes and not SETTINGS.batch_invariant else None
    if stream is not None:
        kind = "float32" if y.dtype == torch.float32 else "bfloat16"
        stream_rows(**stream, out=kind)(x, weight, factors, y)
        return
    launch = dense_rows(
        outputs=w.outputs,
        inputs=w.inputs,
        tile=cut.tile,
        rows=tile,
        splits=cut.splits,
        fmt=w.fmt,
        out="float32" if y.dtype == torch.float32 else "bfloat16",
        groups=groups,
        **pipeline(cut, tile, codes),
    )
    launch(x, weight, factors, y)


def many_rows(x: Tensor, w: PreparedWeight, dtype: torch.dtype, out: Tensor | None) -> Tensor:
    """``[M, out]`` by the library, of bf16 ``x`` ``[M, in]``."""
    matrix = (w.exact if SETTINGS.keep_bf16 else w.dequantised(torch.bfloat16)).t()
    if dtype == torch.bfloat16:
        return torch.mm(x, matrix, out=out) if out is not None else torch.mm(x, matrix)
    y = torch.mm(x, matrix, out_dtype=torch.float32)
    return y if out is None else out.copy_(y)


def many_heads(x: Tensor, w: PreparedWeight, y: Tensor) -> None:
    """``y`` ``[T, G, out]`` by the library, of bf16 ``x`` ``[T, G, in]`` and a stack of weights."""
    stack = w.exact if SETTINGS.keep_bf16 else w.dequantised(torch.bfloat16)
    torch.bmm(x.transpose(0, 1), stack.transpose(1, 2), out=y.transpose(0, 1))
