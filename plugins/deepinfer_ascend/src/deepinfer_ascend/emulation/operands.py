"""Operands of products as the libraries take them, checked and unpacked to fp32."""

from __future__ import annotations

from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from deepinfer_ascend.contracts import misfit
from deepinfer_ascend.emulation.torch_npu import npu_format_cast
from deepinfer_ascend.fractal import ND, Fractals
from deepinfer_ascend.scale_words import GROUP, check_words, unpack
from deepinfer_ascend.tensors import PlainWeight, decode, decode_scale

K_MULTIPLE = 128
"""Inputs of an FP8 or FP4 product (``spec/kernels.md`` 6.4)."""
FP8 = torch.float8_e4m3fn


@frozen(eq=False)
class Values:
    """A quantised operand as plain ops take one."""

    values: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.values.shape


def activation(call: str, pair: Any) -> Values:
    """(FP8 ``[M, K]`` contiguous, column-major words) -> its values."""
    data, words = _pair(call, "a", pair)
    if not isinstance(data, Tensor) or data.dtype != FP8 or data.dim() != 2 or not data.is_contiguous():
        raise misfit(call, "a", "FP8 [M, K], contiguous, in ND", _told(data))
    rows, width = data.shape
    if width % K_MULTIPLE:
        raise misfit(call, "a", f"of a multiple of {K_MULTIPLE} inputs", width)
    check_words(call, "sfa", words, rows, width)
    return Values(_scaled(decode(data.view(torch.uint8), "e4m3"), words))


def weight(call: str, pair: Any, *, stacked: bool = False) -> PlainWeight:
    """(FP8 or packed FP4 in NZ, words) -> fp32 ``[K, N]``, or ``[E, K, N]`` of a stack."""
    data, words = _pair(call, "b", pair)
    if not isinstance(data, Fractals) or len(data.shape) != (3 if stacked else 2):
        raise misfit(call, "b", f"a {'stack of matrices' if stacked else 'matrix'} in NZ", _told(data))
    if data.dtype not in (FP8, torch.uint8):
        raise misfit(call, "b", "FP8, or FP4 codes as uint8", data.dtype)
    values = decode(npu_format_cast(data, ND).view(torch.uint8), "e4m3" if data.dtype == FP8 else "e2m1")
    *_, rows, width = values.shape
    for matrix in words.unbind(0) if stacked else [words]:
        check_words(call, "sfb", matrix, rows, width)
    return PlainWeight(call, _scaled(values, words).transpose(-1, -2).contiguous())


def result(call: str, d: Any, rows: int, width: int, *dtypes: torch.dtype) -> Tensor:
    """Where a product writes: ``[M, N]``, contiguous."""
    if not isinstance(d, Tensor) or d.dtype not in dtypes or d.shape != (rows, width) or not d.is_contiguous():
        raise misfit(call, "d", f"{' or '.join(map(str, dtypes))} [{rows}, {width}], contiguous", _told(d))
    return d


def _pair(call: str, name: str, pair: Any) -> tuple[Any, Any]:
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise misfit(call, name, "a pair (data, scale words)", _told(pair))
    return pair


def _scaled(values: Tensor, words: Tensor) -> Tensor:
    scale = decode_scale(unpack(words), "ue8m0")
    return (values.unflatten(-1, (-1, GROUP)) * scale.unsqueeze(-1)).flatten(-2)


def _told(x: Any) -> str:
    if isinstance(x, Tensor):
        return f"{x.dtype} {list(x.shape)} of strides {x.stride()}"
    return f"{x.dtype} {list(x.shape)} in NZ" if isinstance(x, Fractals) else type(x).__name__
