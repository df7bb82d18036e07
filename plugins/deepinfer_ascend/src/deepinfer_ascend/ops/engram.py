"""The gate of Engram rows (``spec/kernels.md`` 2.8): tile-kernels where it takes the rows, the plain op otherwise."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_ascend import vendor
from deepinfer_ascend.plain import plain_op

FLOOR, STREAMS, WIDTH_MULTIPLE = 1e-6, 4, 128
"""Least magnitude of a dot product below its root; sizes that the kernel takes."""


def gate(x: Tensor, kv: Tensor, params: Any, *, mask: Tensor | None = None) -> Tensor:
    """``X_j + g_j v``, g from the normalised dot product of stream and key; ``[T, c, H]`` in the dtype of ``x``.

    :param kv: ``[T, (c + 1) * H]``: c keys, stream-major, then the shared value.
    :param mask: bool ``[T]``, False (an image row) leaves the row as it is.
    """
    if not _takes(x, kv, params, mask):
        return plain_op("engram.gate")(x, kv, params, mask=mask)  # type: ignore[no-any-return]
    add = vendor.symbol("tile_kernels.engram_gate_fwd", x)
    keys = kv.view(len(x), x.shape[1] + 1, x.shape[2])
    images = None if mask is None else ~mask
    made = add(x, keys, params.weight, params.norm_eps, FLOOR, save_for_backward=False, image_token_mask=images)
    return made[0]  # type: ignore[no-any-return]


def _takes(x: Tensor, kv: Tensor, params: Any, mask: Tensor | None) -> bool:
    """bf16 rows, one behind the other."""
    if x.dim() != 3 or kv.dim() != 2 or not x.numel() or x.shape[1:] != params.weight.shape:
        return False
    return (
        x.dtype == kv.dtype == torch.bfloat16
        and x.is_contiguous()
        and kv.is_contiguous()
        and kv.shape == (len(x), (x.shape[1] + 1) * x.shape[2])
        and x.shape[1] == STREAMS
        and x.shape[2] % WIDTH_MULTIPLE == 0
        and (mask is None or (mask.dtype == torch.bool and mask.shape == x.shape[:1]))
    )


OPS = {"engram.gate": gate}
