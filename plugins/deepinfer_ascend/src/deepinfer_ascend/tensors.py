"""Opaque values that ops hand to each other: quantised activations and prepared weights, as the device takes them.

What the kernels read is stored: codes, int16 scale words, weights in NZ. What plain ops read (``sf``, ``values``,
``matrix``) is derived when somebody asks, and kept.
"""

from __future__ import annotations

from typing import Any

import torch
from attrs import define, frozen
from torch import Tensor

from deepinfer_ascend import vendor
from deepinfer_ascend.contracts import misfit
from deepinfer_ascend.fractal import ND
from deepinfer_ascend.scale_words import GROUP, PER_WORD, pack, unpack


@define(eq=False)
class QuantTensor:
    """A tensor quantised in groups along its last dimension.

    :ivar data: uint8 codes, ``[..., K]`` (e4m3) or ``[..., K / 2]`` (e2m1, even element low).
    :ivar sf_kind: ``ue8m0``, ``e4m3`` (uint8) or ``f32``.
    :ivar words: int16 ``[M, K / 64]``, column-major, M the rows of all leading dimensions; None where groups are not
        of 32, scales are not UE8M0, or a row has an odd number of them.
    """

    data: Tensor
    fmt: str
    group: int
    sf_kind: str
    words: Tensor | None = None
    _sf: Tensor | None = None
    _values: Tensor | None = None
    sf_layout: str = "words"

    @classmethod
    def of_codes(cls, data: Tensor, sf: Tensor, *, fmt: str, group: int, sf_kind: str) -> QuantTensor:
        """From row-major codes and scales; packs the words where the scales have that form."""
        packed = sf_kind == "ue8m0" and group == GROUP and sf.shape[-1] % PER_WORD == 0 and sf.numel() > 0
        words = pack(sf.view(torch.uint8).reshape(-1, sf.shape[-1])) if packed else None
        return cls(data, fmt, group, sf_kind, words, None if packed else sf)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.data.shape[:-1], self.data.shape[-1] * (2 if self.fmt == "e2m1" else 1)))

    @property
    def device(self) -> torch.device:
        return self.data.device

    @property
    def sf(self) -> Tensor:
        """Scales row-major, ``[..., K / group]``: uint8 or fp32."""
        if self._sf is None and self.words is not None:
            self._sf = unpack(self.words).view(*self.shape[:-1], -1)
        return self._sf

    @property
    def scale(self) -> Tensor:
        """Scales as fp32."""
        return decode_scale(self.sf, self.sf_kind)

    @property
    def values(self) -> Tensor:
        """What the codes stand for, fp32 ``[..., K]``."""
        if self._values is None:
            codes = decode(self.data, self.fmt)
            self._values = (codes.unflatten(-1, (-1, self.group)) * self.scale.unsqueeze(-1)).view(self.shape)
        return self._values

    def moved(self, places: Tensor, rows: int) -> QuantTensor:
        """A matrix of ``rows`` rows with row i of this one at ``places[i]``, int64 ``[M]``, and zeros elsewhere."""
        data = self.data.new_zeros(rows, self.data.shape[1])
        data[places] = self.data
        if self.words is None:
            raise misfit("QuantTensor.moved", "words", "int16 words of two UE8M0 scales", None)
        words = self.words.new_zeros(self.words.shape[1], rows)
        words[:, places] = self.words.t()
        return QuantTensor(data, self.fmt, self.group, self.sf_kind, words.t())

    def overwrite(self, other: QuantTensor) -> QuantTensor:
        """Take the content of ``other``, of the same form, into this memory."""
        self.data.copy_(other.data)
        if self.words is not None and other.words is not None:
            self.words.copy_(other.words)
        if self._sf is not None:
            self._sf.copy_(other.sf)
        if self._values is not None:
            self._values.copy_(other.values)
        return self


@frozen(eq=False)
class PlainWeight:
    """A weight as plain ops take one: fp32 ``matrix`` ``[K, N]`` or ``[E, K, N]``."""

    name: str
    matrix: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.matrix.shape)


@define(eq=False)
class PreparedWeight:
    """A weight ``[N, K]``, or a stack ``[E, N, K]``, made once at load.

    :ivar fmt: ``e4m3``, ``e2m1``, ``bf16`` (``stored`` is in NZ) or ``f32`` (``stored`` is in ND: no kernel takes it).
    :ivar words: int16 ``[(E,) N, K / 64]``, each matrix column-major; None: no scales, or an odd number of groups.
    :ivar scales: uint8 ``[(E,) N, K / 32]`` where there are no words of them.
    :ivar parts: output widths of the pieces that were joined.
    """

    name: str
    use: str
    fmt: str
    stored: Any
    shape: tuple[int, ...]
    """``(K, N)`` or ``(E, K, N)``, as ``matrix`` has it."""
    words: Tensor | None = None
    scales: Tensor | None = None
    parts: tuple[int, ...] = ()
    _matrix: Tensor | None = None

    @property
    def matrix(self) -> Tensor:
        """fp32 ``[(E,) K, N]``, contiguous, made at the first use and kept: for plain ops."""
        if self._matrix is None:
            self._matrix = self._dequantised().transpose(-1, -2).contiguous()
        return self._matrix

    @property
    def slices(self) -> tuple[Tensor, ...]:
        """The matrices of a stack, one by one."""
        return self.matrix.unbind(0) if len(self.shape) == 3 else ()

    def _dequantised(self) -> Tensor:
        if self.fmt == "f32":
            return self.stored
        stored = vendor.symbol("torch_npu.npu_format_cast", self.stored)(self.stored, ND)
        if self.fmt == "bf16":
            return stored.float()
        scales = unpack(self.words) if self.words is not None else self.scales
        values = decode(stored.view(torch.uint8), self.fmt)
        if scales is None:
            return values
        scale = decode_scale(scales, "ue8m0").repeat_interleave(GROUP, -1)
        return values * scale[..., : values.shape[-1]]


def decode(codes: Tensor, fmt: str) -> Tensor:
    """uint8 codes -> fp32: ``[..., n]`` of ``e4m3``, ``[..., 2n]`` of packed ``e2m1``."""
    if fmt == "e4m3":
        return codes.view(torch.float8_e4m3fn).to(torch.float32)
    nibbles = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2).to(torch.int32)
    magnitude = nibbles & 7
    # Twice the value: 0 1 2 3 of the subnormal and the first binade, then two steps a binade.
    doubled = torch.where(magnitude < 2, magnitude, (2 + (magnitude & 1)) << ((magnitude >> 1) - 1).clamp(min=0))
    values = doubled.to(torch.float32) * 0.5
    return torch.where(nibbles >= 8, -values, values)


def decode_scale(sf: Tensor, sf_kind: str) -> Tensor:
    """fp32 scales of stored ones; byte 255 of UE8M0 is NaN."""
    if sf_kind == "f32":
        return sf
    if sf_kind == "e4m3":
        return decode(sf, "e4m3")
    codes = sf.view(torch.uint8).to(torch.int32)
    bits = (codes << 23).masked_fill(codes == 0, 0x00400000).masked_fill(codes == 255, 0x7FC00000)
    return bits.view(torch.float32)
