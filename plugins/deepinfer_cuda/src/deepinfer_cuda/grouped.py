"""Products of rows sorted by expert with stacks of MXFP4 matrices: which kernel instance, and its arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from deepinfer_cuda.plain import plain_op
from deepinfer_cuda.routing import Tiles, tiles_of
from deepinfer_cuda.tensors import PreparedWeight, QuantTensor
from deepinfer_cuda.tl.moe import packing, wide
from deepinfer_cuda.tl.moe.grouped import grouped_product

NARROW = {"step": 128, "stages": 4, "groups": 1, "parts": 2}
TILES = ((7.0, 8), (14.0, 16), (30.0, 32), (math.inf, wide.TILE))
"""Mean rows an expert up to which a tile has so many rows: where the time of a tile times the tiles of Poisson loads
cross. It changes the time, never the bits."""


def tile_rows(rows: int, experts: int) -> int:
    """Rows of a tile, from what the host knows."""
    return next(tile for most, tile in TILES if rows <= most * experts)


def can_pack(w: Any, *, gated: bool) -> bool:
    """Whether the kernel takes the stack ``w``: FP4 codes, scales within reach, whole vectors of outputs."""
    if not isinstance(w, PreparedWeight) or w.fmt != "e2m1" or len(w.size) != 3 or w.device.type != "cuda":
        return False
    low, high = packing.REACH
    whole = w.outputs % (64 if gated else 8) == 0 and w.inputs % 32 == 0 and w.block_rows == 1
    return whole and low <= w.reach[0] and w.reach[1] <= high


def packed(w: PreparedWeight, *, gated: bool) -> Tensor:
    """The stack in the layout of the kernel, made at the first use."""
    return w.layout(_NAMES[gated], lambda w: _packed(w, gated))


def keep_packed(w: PreparedWeight) -> None:
    """Hold a stack of FP4 codes in the layout of the kernel alone. Gate and up come as two parts of each matrix."""
    gated = len(w.parts) == 2
    if can_pack(w, gated=gated):
        w.keep_layout(_NAMES[gated], lambda w: _packed(w, gated), lambda w: _unpacked(w, gated))


_NAMES = {False: "mxfp4", True: "mxfp4:gated"}


def _unpacked(w: PreparedWeight, gated: bool) -> Tensor:
    return packing.unpack(packed(w, gated=gated).view(torch.int32), w.size, gated=gated)


def _packed(w: PreparedWeight, gated: bool) -> Tensor:
    if w.scales is None:
        raise ValueError(f"FP4 weight {w.name} has no scales")  # can_pack has seen to it
    return packing.pack(w.stored.view(torch.uint8), w.scales.view(torch.uint8), gated=gated).view(torch.uint32)


def product(
    x: Tensor,
    tiles: Tiles,
    w: PreparedWeight,
    out: Tensor,
    *,
    tile: int,
    weight: Tensor,
    gated: bool = False,
    cast: bool = False,
    limit: float = math.inf,
) -> Tensor:
    """``out[r] = x[r] . w[expert of r]`` for every row of a tile; other rows are left alone."""
    how: dict[str, Any] = {"inputs": w.inputs, "outputs": w.outputs, "gated": gated, "cast": cast}
    how["out"] = "bfloat16" if out.dtype == torch.bfloat16 else "float32"
    launch = wide.wide_product(**how) if tile == wide.TILE else grouped_product(**how, tile=tile, **NARROW)
    launch(x, tiles.expert, tiles.begin, tiles.rows, packed(w, gated=gated), weight, limit, out)
    return out


def grouped(
    a: Tensor | QuantTensor,
    w: Any,
    seg_ends: Tensor | Sequence[int],
    *,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Rows of ``a`` ``[M, K]`` sorted by group: group g owns rows ``[seg_ends[g-1], seg_ends[g])`` -> ``[M, N]``.

    ``w`` is a stack ``[E, K, N]``. Rows past the last segment are zero.
    """
    if not _takes(a, w, seg_ends, out_dtype, out):
        return plain_op("gemm.grouped")(a, w, seg_ends, out_dtype=out_dtype, out=out)  # type: ignore[no-any-return]
    x = a.exact if isinstance(a, QuantTensor) else a
    rows, experts = x.shape[0], w.size[0]
    if out is None:
        out = torch.empty(rows, w.outputs, dtype=out_dtype or torch.bfloat16, device=x.device)
    out.zero_()
    if rows:
        tile = tile_rows(rows, experts)
        ends = seg_ends if isinstance(seg_ends, Tensor) else torch.tensor(seg_ends, device=x.device)
        tiles = tiles_of(ends.to(torch.int32), rows, tile)
        product(x.contiguous(), tiles, w, out, tile=tile, weight=ends.new_zeros(rows, dtype=torch.float32))
    return out


def _takes(a: Any, w: Any, seg_ends: Any, out_dtype: torch.dtype | None, out: Tensor | None) -> bool:
    """Whether the kernel serves a call; what breaks the contract is the plain op's to refuse."""
    if not can_pack(w, gated=False):
        return False
    values = a.exact if isinstance(a, QuantTensor) else a
    if not isinstance(values, Tensor) or values.dtype != torch.bfloat16 or values.dim() != 2:
        return False
    if values.shape[1] != w.inputs or len(seg_ends) != w.size[0]:
        return False
    if not isinstance(seg_ends, Tensor):
        steps = zip([0, *seg_ends], [*seg_ends, values.shape[0]], strict=True)
        if any(end < begin for begin, end in steps):
            return False
    elif not seg_ends.is_cuda:
        return False
    floats = (torch.bfloat16, torch.float32)
    if out is not None:
        right = out.shape == (values.shape[0], w.outputs) and out.is_contiguous() and out.data_ptr() % 16 == 0
        return right and out.dtype in floats and out_dtype in (None, out.dtype)
    return out_dtype is None or out_dtype in floats
