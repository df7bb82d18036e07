"""Checkpoint weights by their bytes, one element at a time in fp64 (``spec/model.md`` 3)."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_core.conformance.reference import formats

BLOCK = 32


def weight_values(w: Tensor, sf: Tensor | None) -> Tensor:
    """fp64 ``[out, in]``: E4M3 with 32x32 E8M0 blocks, packed E2M1 with E8M0 groups of 32 inputs, or plain floats."""
    if sf is None:
        return w.double()
    scale = formats.decode_ue8m0(sf.view(torch.uint8))
    if w.dtype == torch.float8_e4m3fn:
        codes = formats.decode_e4m3(w.view(torch.uint8))
        rows = torch.arange(codes.shape[0]) // BLOCK
        columns = torch.arange(codes.shape[1]) // BLOCK
        return codes * scale[rows][:, columns]
    codes = formats.decode_e2m1(w.view(torch.uint8))
    return codes * scale[:, torch.arange(codes.shape[1]) // BLOCK]
