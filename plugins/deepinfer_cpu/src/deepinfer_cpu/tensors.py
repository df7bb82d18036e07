"""Opaque values that ops hand to each other: quantised activations and prepared weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import define, field, frozen
from torch import Tensor

from deepinfer_cpu import rounding

Quantised = Any
"""A quantised tensor of this backend or of another one: it offers what the public members of :class:`QuantTensor` are.
Ops that take one beside plain tensors know it by not being a ``torch.Tensor``."""
Weight = Any
"""A prepared weight of this backend or of another one: ``name``, ``shape`` and ``matrix``, as in
:class:`PreparedWeight`."""

DECODE_DATA: dict[str, Callable[[Tensor], Tensor]] = {"e4m3": rounding.decode_e4m3, "e2m1": rounding.decode_e2m1}
ENCODE_DATA: dict[str, Callable[[Tensor], Tensor]] = {"e4m3": rounding.encode_e4m3, "e2m1": rounding.encode_e2m1}


@define(eq=False)
class QuantTensor:
    """A tensor quantised in groups along its last dimension.

    ``values`` (what the codes stand for, fp32 ``[..., K]``) is always at hand on this backend, so that a product need
    not unpack anything; ``data`` and ``sf`` are the exact bytes and are made when somebody asks for them.

    :ivar fmt: ``e4m3`` (one code a byte) or ``e2m1`` (two codes a byte, even element low).
    :ivar group: values that share a scale.
    :ivar sf_kind: ``ue8m0``, ``e4m3`` or ``f32``.
    :ivar sf_layout: always ``row``: ``sf`` is ``[..., K / group]``.
    """

    values: Tensor
    fmt: str
    group: int
    sf_kind: str
    _parts: tuple[Tensor, Tensor] | Callable[[], tuple[Tensor, Tensor]]
    """(values over their scales, scales), as ``quant.scale_groups`` makes them, or what makes them; once encoded,
    (data, sf)."""
    _encoded: bool = False
    sf_layout: str = "row"

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    @property
    def data(self) -> Tensor:
        """uint8 codes ``[..., K]`` (e4m3) or ``[..., K / 2]`` (e2m1)."""
        return self._codes()[0]

    @property
    def sf(self) -> Tensor:
        """Scales ``[..., K / group]``: uint8 codes (ue8m0, e4m3) or fp32."""
        return self._codes()[1]

    def _codes(self) -> tuple[Tensor, Tensor]:
        parts = self._parts() if callable(self._parts) else self._parts
        if not self._encoded:
            scaled, scale = parts
            data = ENCODE_DATA[self.fmt](scaled.reshape(self.values.shape))
            self._parts = parts = (data, encode_scale(scale.squeeze(-1), self.sf_kind))
            self._encoded = True
        return parts

    @classmethod
    def of_codes(cls, data: Tensor, sf: Tensor, *, fmt: str, group: int, sf_kind: str) -> QuantTensor:
        """From stored codes and scales (uint8, or fp32 scales)."""
        values = DECODE_DATA[fmt](data)
        scale = decode_scale(sf, sf_kind)
        values = (values.view(*values.shape[:-1], -1, group) * scale.unsqueeze(-1)).view(values.shape)
        return cls(values=values, fmt=fmt, group=group, sf_kind=sf_kind, parts=(data, sf), encoded=True)


def decode_scale(sf: Tensor, sf_kind: str) -> Tensor:
    """fp32 scales of stored ones."""
    if sf_kind == "ue8m0":
        return rounding.decode_e8m0(sf)
    return rounding.decode_e4m3(sf) if sf_kind == "e4m3" else sf


def encode_scale(scale: Tensor, sf_kind: str) -> Tensor:
    """Stored form of fp32 scales that are values of their format: uint8 codes, or fp32 itself."""
    if sf_kind == "ue8m0":
        return rounding.encode_e8m0(scale)
    return rounding.encode_e4m3(scale) if sf_kind == "e4m3" else scale


@frozen(eq=False)
class PreparedWeight:
    """A weight ready for its op: dequantised once to fp32, ``[in, out]`` (or a stack ``[E, in, out]``), contiguous.

    :ivar parts: output widths of the pieces that were concatenated.
    """

    name: str
    use: str
    matrix: Tensor
    parts: tuple[int, ...] = ()
    slices: tuple[Tensor, ...] = field(init=False)
    """The matrices of a stack, one by one."""

    @slices.default
    def _slices(self) -> tuple[Tensor, ...]:
        return self.matrix.unbind(0) if self.matrix.dim() == 3 else ()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.matrix.shape)
