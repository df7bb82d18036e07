"""Checkpoint weights on the device (``quant.prepare_weight``): pieces joined, and what kernels read alone kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from deepinfer_cuda.tensors import GROUP, PreparedWeight


@frozen(eq=False)
class Piece:
    """One matrix ``[out, in]`` of a checkpoint: what is stored and, of a quantised one, its E8M0 bytes."""

    fmt: str
    stored: Tensor
    scales: Tensor | None = None
    block_rows: int = GROUP

    @property
    def rows(self) -> int:
        return self.stored.shape[0]

    def by_row(self) -> Piece:
        """The same with scales for each output."""
        if self.scales is None or self.block_rows == 1:
            return self
        return Piece(self.fmt, self.stored, self.scales.repeat_interleave(GROUP, 0)[: self.rows].contiguous(), 1)


def prepared(name: str, w: Any, sf: Any, use: str) -> PreparedWeight | None:
    """The weight ready for its op, or None where the arguments do not fit: the op of ``cpu`` then says why."""
    kind, _, number = use.partition(":")
    if kind == "experts" and not number:
        return _stack(name, use, w, [None] * len(w) if sf is None else sf)
    whole, parts = _joined(w, sf)
    if whole is None:
        return None
    if use == "dense":
        return _weight(name, use, whole, parts=parts)
    groups = int(number) if number.isdecimal() else 0
    if kind != "heads" or groups < 1 or whole.rows % groups:
        return None
    each = whole.rows // groups
    whole = whole if each % GROUP == 0 else whole.by_row()
    scales = None if whole.scales is None else whole.scales.view(groups, -1, whole.scales.shape[1])
    return _weight(name, use, Piece(whole.fmt, whole.stored.view(groups, each, -1), scales, whole.block_rows))


def _weight(name: str, use: str, piece: Piece, parts: tuple[int, ...] = ()) -> PreparedWeight:
    reach = (0, 0)
    if piece.scales is not None and piece.scales.numel():
        low, high = torch.stack(piece.scales.aminmax()).tolist()
        reach = (low - 127, high - 127)
    return PreparedWeight(name, use, piece.fmt, piece.stored, piece.scales, piece.block_rows, parts, reach)


def _stack(name: str, use: str, w: Sequence[Any], sf: Sequence[Any]) -> PreparedWeight | None:
    if not w or len(w) != len(sf):
        return None
    found, parts = zip(*(_joined(item, scales) for item, scales in zip(w, sf, strict=True)), strict=True)
    pieces = [piece for piece in found if piece is not None]
    first = pieces[0] if pieces else None
    if first is None or len(pieces) < len(found) or any(_form(piece) != _form(first) for piece in pieces):
        return None
    scales = None if first.scales is None else torch.stack([p.scales for p in pieces if p.scales is not None])
    whole = Piece(first.fmt, torch.stack([p.stored for p in pieces]), scales, first.block_rows)
    return _weight(name, use, whole, parts=parts[0])


def _form(piece: Piece) -> tuple[object, ...]:
    return piece.fmt, piece.stored.shape, piece.block_rows


def _joined(w: Any, sf: Any) -> tuple[Piece | None, tuple[int, ...]]:
    """One weight, or several whose outputs are joined, and the outputs of each."""
    if isinstance(w, Tensor):
        piece = _piece(w, sf)
        return piece, () if piece is None else (piece.rows,)
    scales = [None] * len(w) if sf is None else sf
    if not w or len(w) != len(scales):
        return None, ()
    found = [_piece(item, scale) for item, scale in zip(w, scales, strict=True)]
    pieces = [piece for piece in found if piece is not None]
    if len(pieces) < len(found) or len({_inputs(p) for p in pieces}) > 1:
        return None, ()
    parts = tuple(p.rows for p in pieces)
    if len({p.fmt for p in pieces}) > 1:
        pieces = _as_values(pieces)
    elif any(p.rows % GROUP for p in pieces[:-1]):
        pieces = [p.by_row() for p in pieces]
    stored = torch.cat([p.stored for p in pieces])
    joined = None if pieces[0].scales is None else torch.cat([p.scales for p in pieces if p.scales is not None])
    return Piece(pieces[0].fmt, stored, joined, pieces[0].block_rows), parts


def _as_values(pieces: Sequence[Piece]) -> list[Piece]:
    """Pieces of several formats: values, in bf16 where that holds them all."""
    weights = [_weight("", "dense", piece) for piece in pieces]
    dtype, fmt = (torch.bfloat16, "bf16") if all(w.is_exact for w in weights) else (torch.float32, "f32")
    return [Piece(fmt, w.dequantised(dtype)) for w in weights]


def _inputs(piece: Piece) -> int:
    return piece.stored.shape[1] * (2 if piece.fmt == "e2m1" else 1)


def _piece(w: Any, sf: Any) -> Piece | None:
    if not isinstance(w, Tensor) or w.dim() != 2:
        return None
    if sf is None:
        if not w.dtype.is_floating_point or w.element_size() == 1:
            return None
        return Piece("bf16", w.contiguous()) if w.dtype == torch.bfloat16 else Piece("f32", w.float().contiguous())
    rows, columns = w.shape
    if w.dtype == torch.float8_e4m3fn:
        grid, fmt, block_rows = (-(-rows // GROUP), -(-columns // GROUP)), "e4m3", GROUP
    elif w.dtype in (torch.int8, torch.uint8):
        grid, fmt, block_rows = (rows, -(-2 * columns // GROUP)), "e2m1", 1
    else:
        return None
    if sf.element_size() != 1 or tuple(sf.shape) != grid:
        return None
    return Piece(fmt, w.view(torch.uint8).contiguous(), sf.view(torch.uint8).contiguous(), block_rows)
