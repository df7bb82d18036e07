"""Checkpoint weights as the device takes them (``quant.prepare_weight``): codes in NZ, a word for two scales."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from deepinfer_ascend import vendor
from deepinfer_ascend.fractal import NZ
from deepinfer_ascend.scale_words import GROUP, PER_WORD, pack
from deepinfer_ascend.tensors import PreparedWeight


@frozen(eq=False)
class Piece:
    """One matrix of a checkpoint, or several joined along their outputs.

    :ivar stored: ``[(E,) N, K]`` values, or ``[(E,) N, bytes]`` codes. :ivar scales: uint8 ``[(E,) N, ceil(K / 32)]``.
    """

    fmt: str
    stored: Tensor
    scales: Tensor | None = None
    parts: tuple[int, ...] = ()

    @property
    def form(self) -> tuple[object, ...]:
        return self.fmt, self.stored.shape[-1]


def prepared(name: str, w: Any, sf: Any, use: str) -> PreparedWeight | None:
    """The weight ready for its op, or None where the arguments do not fit: the op of ``cpu`` then says why."""
    kind, _, number = use.partition(":")
    if kind == "experts" and not number:
        whole = _stacked(w, sf)
    else:
        whole = _joined(w, sf)
        groups = int(number) if number.isdecimal() else 0
        if use != "dense" and (kind != "heads" or groups < 1 or whole is None or whole.stored.shape[0] % groups):
            return None
        if use != "dense" and whole is not None:
            scales = None if whole.scales is None else whole.scales.unflatten(0, (groups, -1))
            whole = Piece(whole.fmt, whole.stored.unflatten(0, (groups, -1)), scales)
    return None if whole is None else _weight(name, use, whole)


def _weight(name: str, use: str, piece: Piece) -> PreparedWeight:
    *front, rows, width = piece.stored.shape
    shape = (*front, width * (2 if piece.fmt == "e2m1" else 1), rows)
    stored: Any = piece.stored
    if piece.fmt != "f32":
        typed = stored.view(torch.float8_e4m3fn) if piece.fmt == "e4m3" else stored
        stored = vendor.symbol("torch_npu.npu_format_cast", typed)(typed.contiguous(), NZ)
    scales, words = piece.scales, None
    if scales is not None and scales.shape[-1] % PER_WORD == 0:
        scales, words = None, pack(scales)
    return PreparedWeight(name, use, piece.fmt, stored, shape, words, scales, piece.parts if use == "dense" else ())


def _stacked(w: Any, sf: Any) -> Piece | None:
    scales = [None] * len(w) if sf is None else sf
    if not w or len(w) != len(scales):
        return None
    found = [_joined(item, scale) for item, scale in zip(w, scales, strict=True)]
    pieces = [piece for piece in found if piece is not None]
    if len(pieces) < len(found) or len({(p.form, p.stored.shape) for p in pieces}) > 1:
        return None
    stacked = None if pieces[0].scales is None else torch.stack([p.scales for p in pieces if p.scales is not None])
    return Piece(pieces[0].fmt, torch.stack([p.stored for p in pieces]), stacked)


def _joined(w: Any, sf: Any) -> Piece | None:
    """One weight, or several whose outputs are joined: codes where all have one form, else their values in fp32."""
    if isinstance(w, Tensor):
        w, sf = [w], [sf]
    scales: Sequence[Any] = [None] * len(w) if sf is None else sf
    if not w or len(w) != len(scales):
        return None
    found = [_piece(item, scale) for item, scale in zip(w, scales, strict=True)]
    pieces = [piece for piece in found if piece is not None]
    if len(pieces) < len(found):
        return None
    if len({p.form for p in pieces}) > 1:
        pieces = [_as_values(piece) for piece in pieces]
        if len({p.form for p in pieces}) > 1:
            return None
    joined = None if pieces[0].scales is None else torch.cat([p.scales for p in pieces if p.scales is not None])
    parts = tuple(p.stored.shape[0] for p in pieces)
    return Piece(pieces[0].fmt, torch.cat([p.stored for p in pieces]), joined, parts)


def _as_values(piece: Piece) -> Piece:
    matrix = _weight("", "dense", piece).matrix
    return Piece("f32", matrix.t().contiguous())


def _piece(w: Any, sf: Any) -> Piece | None:
    if not isinstance(w, Tensor) or w.dim() != 2:
        return None
    if sf is None:
        if not w.dtype.is_floating_point or w.element_size() == 1:
            return None
        return Piece("bf16", w.contiguous()) if w.dtype == torch.bfloat16 else Piece("f32", w.float().contiguous())
    rows, columns = w.shape
    if w.dtype == torch.float8_e4m3fn:
        grid, fmt = (-(-rows // GROUP), -(-columns // GROUP)), "e4m3"
    elif w.dtype in (torch.int8, torch.uint8):
        grid, fmt = (rows, -(-2 * columns // GROUP)), "e2m1"
    else:
        return None
    if sf.element_size() != 1 or tuple(sf.shape) != grid:
        return None
    scales = sf.view(torch.uint8)
    if fmt == "e4m3":  # a block of 32 outputs shares a scale: one for each, as the products read them
        scales = scales.repeat_interleave(GROUP, 0)[:rows]
    return Piece(fmt, w.view(torch.uint8).contiguous(), scales.contiguous())
