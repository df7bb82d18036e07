"""FRACTAL_NZ, the layout in which the cube reads a matrix: fractals of 16 rows by 32 bytes, column of fractals first.

::

    ND  [N, K]  ->  NZ  [ceil(K / C0), ceil(N / 16), 16, C0]        C0 = 32 bytes of the element type

So a bf16 fractal is 16 x 16, one of FP8 16 x 32, and one of packed FP4 16 x 64 values. Edges are padded with zero
bytes. Of a stack of matrices each is laid out by itself.
"""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor
from torch.nn.functional import pad

from deepinfer_ascend.contracts import misfit

ND, NZ = 2, 29
"""Format numbers of the runtime (``get_npu_format``)."""
ROWS, ROW_BYTES = 16, 32


@frozen(eq=False)
class Fractals:
    """A tensor in NZ, as the emulation holds one: its bytes, and the ``shape`` and ``dtype`` that it shows.

    It has none of a tensor's methods: on the device view, slice and contents of an NZ tensor are forbidden.
    """

    data: Tensor
    shape: torch.Size
    dtype: torch.dtype

    @property
    def device(self) -> torch.device:
        return self.data.device


def to_fractals(x: Tensor) -> Fractals:
    """ND ``[..., N, K]``, contiguous -> NZ."""
    if x.dim() < 2 or not x.is_contiguous():
        raise misfit("npu_format_cast", "input", "contiguous, of two or more dimensions", (list(x.shape), x.stride()))
    bytes_ = x.view(torch.uint8)
    *front, rows, width = bytes_.shape
    padded = pad(bytes_, (0, -width % ROW_BYTES, 0, -rows % ROWS))
    tiled = padded.view(*front, padded.shape[-2] // ROWS, ROWS, padded.shape[-1] // ROW_BYTES, ROW_BYTES)
    data = tiled.movedim(-2, -4).contiguous()
    return Fractals(data, x.shape, x.dtype)


def from_fractals(x: Fractals) -> Tensor:
    """NZ -> ND, the padding left out."""
    columns, blocks = x.data.shape[-4], x.data.shape[-3]
    front, rows = x.shape[:-2], x.shape[-2]
    width = x.shape[-1] * x.dtype.itemsize
    whole = x.data.movedim(-4, -2).reshape(*front, blocks * ROWS, columns * ROW_BYTES)
    return whole[..., :rows, :width].contiguous().view(x.dtype)
