"""Opaque values that ops hand to each other: quantised activations and prepared weights.

Both hold one form and derive the others when somebody asks. Every derivation is a composition of torch
operations without synchronisation, so it may happen inside a captured graph, and it is exact: a code times its power
of two is a bf16 number, because E4M3 has four significant bits and E2M1 two.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import define, field
from torch import Tensor

GROUP = 32
"""Values along the inputs of a weight that share a scale, and rows of an FP8 weight that do."""


@define(eq=False)
class QuantTensor:
    """A tensor quantised in groups along its last dimension. Give ``sf`` and at least one of the other three forms.

    :ivar fmt: ``e4m3`` (one code a byte) or ``e2m1`` (two codes a byte, even element low).
    :ivar group: values that share a scale.
    :ivar sf_kind: ``ue8m0``, ``e4m3`` (uint8 codes) or ``f32``.
    :ivar sf: scales ``[..., K / group]``, row-major.
    """

    fmt: str
    group: int
    sf_kind: str
    sf: Tensor
    _data: Tensor | None = None
    _exact: Tensor | None = None
    _values: Tensor | None = None
    sf_layout: str = "row"

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.sf.shape[:-1], self.sf.shape[-1] * self.group))

    @property
    def device(self) -> torch.device:
        return self.sf.device

    @property
    def data(self) -> Tensor:
        """uint8 codes ``[..., K]`` (e4m3) or ``[..., K / 2]`` (e2m1)."""
        if self._data is None:
            source = self._values if self._values is not None else self.exact.float()
            scaled = grouped(source, self.group) / self.scale.unsqueeze(-1)
            # The largest bf16 number over its scale is 255, stored as 256; the product of both is past all numbers.
            scaled = torch.where(scaled.isinf(), torch.copysign(scaled.new_full((), 256.0), scaled), scaled)
            self._data = encode(scaled.view(source.shape), self.fmt)
        return self._data

    @property
    def values(self) -> Tensor:
        """What the codes stand for, fp32 ``[..., K]``."""
        if self._values is None:
            self._values = self._exact.float() if self._exact is not None else self._decoded()
        return self._values

    @property
    def exact(self) -> Tensor:
        """The same in bf16 ``[..., K]``, as products on SM90 read it; rounded where scales are ``f32``."""
        if self._exact is None:
            values = self._values if self._values is not None else self._decoded()
            self._exact = values.to(torch.bfloat16)
        return self._exact

    @property
    def scale(self) -> Tensor:
        """Scales as fp32."""
        return decode_scale(self.sf, self.sf_kind)

    @property
    def forms(self) -> tuple[str, ...]:
        """Which forms are at hand."""
        named = (("data", self._data), ("exact", self._exact), ("values", self._values))
        return tuple(name for name, form in named if form is not None)

    def _decoded(self) -> Tensor:
        values = decode(self.data, self.fmt)
        return (grouped(values, self.group) * self.scale.unsqueeze(-1)).view(values.shape)

    @classmethod
    def of_codes(cls, data: Tensor, sf: Tensor, *, fmt: str, group: int, sf_kind: str) -> QuantTensor:
        """From stored codes and scales (uint8, or fp32 scales)."""
        return cls(fmt=fmt, group=group, sf_kind=sf_kind, sf=sf, data=data)


@define(eq=False)
class PreparedWeight:
    """A weight on the device, ``[out, in]`` or a stack ``[E, out, in]``, as the checkpoint stores it, or in a kernel's
    layout alone, from which that form can be had.

    :ivar fmt: ``e4m3``, ``e2m1`` (``stored`` holds codes), ``bf16`` or ``f32`` (``stored`` holds values).
    :ivar size: that of ``stored``.
    :ivar scales: E8M0 bytes ``[(E,) ceil(out / block_rows), ceil(in / 32)]`` of a quantised weight.
    :ivar block_rows: outputs that share a scale: 32, or 1 where blocks of 32 would cross a border of pieces.
    :ivar parts: output widths of the pieces that were concatenated.
    :ivar reach: smallest and largest exponent of the scales, read once at load.
    """

    name: str
    use: str
    fmt: str
    _stored: Tensor | None
    scales: Tensor | None = None
    block_rows: int = GROUP
    parts: tuple[int, ...] = ()
    reach: tuple[int, int] = (0, 0)
    _matrix: Tensor | None = None
    _exact: Tensor | None = None
    _layouts: dict[str, Tensor] = field(factory=dict)
    _unpack: Callable[[PreparedWeight], Tensor] | None = None
    size: torch.Size = field(init=False)
    device: torch.device = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.size, self.device = self.stored.shape, self.stored.device

    @property
    def stored(self) -> Tensor:
        """Codes or values as in the checkpoint; made anew each time where a layout is all that is kept."""
        if self._stored is not None:
            return self._stored
        if self._unpack is None:
            raise ValueError(f"weight {self.name} has neither codes nor a layout")
        return self._unpack(self)

    @property
    def outputs(self) -> int:
        return self.size[-2]

    @property
    def inputs(self) -> int:
        return self.size[-1] * (2 if self.fmt == "e2m1" else 1)

    @property
    def shape(self) -> tuple[int, ...]:
        """``(in, out)`` or ``(E, in, out)``, as ``matrix`` has it."""
        return (*self.size[:-2], self.inputs, self.outputs)

    @property
    def matrix(self) -> Tensor:
        """fp32 ``[(E,) in, out]``, contiguous, made at the first use and kept: for plain and exact ops."""
        if self._matrix is None:
            self._matrix = self.dequantised(torch.float32).transpose(-1, -2).contiguous()
        return self._matrix

    @property
    def slices(self) -> tuple[Tensor, ...]:
        """The matrices of a stack, one by one."""
        return self.matrix.unbind(0) if len(self.size) == 3 else ()

    @property
    def is_exact(self) -> bool:
        """Whether bf16 holds every value: always of codes, unless a scale lies at the ends of the exponents."""
        low, high = self.reach
        return self.fmt == "bf16" or (self.fmt != "f32" and low >= -110 and high <= 118)

    @property
    def exact(self) -> Tensor:
        """bf16 ``[(E,) out, in]``, made at the first use and kept (twice the bytes of FP8 codes)."""
        if self.fmt == "bf16":
            return self.stored
        if self._exact is None:
            self._exact = self.dequantised(torch.bfloat16)
        return self._exact

    def dequantised(self, dtype: torch.dtype) -> Tensor:
        """A new ``[(E,) out, in]`` tensor of ``dtype``; plain weights of that dtype come as they are stored."""
        if self.scales is None:
            return self.stored.to(dtype)
        values = decode(self.stored, self.fmt)
        scale = decode_scale(self.scales, "ue8m0")
        scale = scale.repeat_interleave(self.block_rows, -2)[..., : self.outputs, :]
        return (values * scale.repeat_interleave(GROUP, -1)[..., : self.inputs]).to(dtype)

    def layout(self, name: str, make: Callable[[PreparedWeight], Tensor]) -> Tensor:
        """The kernel layout ``name``, made at the first use and kept."""
        if name not in self._layouts:
            self._layouts[name] = make(self)
        return self._layouts[name]

    def keep_layout(
        self, name: str, make: Callable[[PreparedWeight], Tensor], unpack: Callable[[PreparedWeight], Tensor]
    ) -> None:
        """Make the kernel layout ``name`` now and drop the codes, which ``unpack`` gets back from it."""
        self.layout(name, make)
        self._unpack, self._stored = unpack, None


def grouped(x: Tensor, group: int) -> Tensor:
    """``[..., K]`` -> ``[..., K / group, group]``."""
    return x.reshape(*x.shape[:-1], x.shape[-1] // group, group)


def decode(codes: Tensor, fmt: str) -> Tensor:
    """uint8 (or FP8) codes -> fp32: ``[..., n]`` of ``e4m3``, ``[..., 2n]`` of packed ``e2m1``."""
    if fmt == "e4m3":
        return codes.view(torch.float8_e4m3fn).to(torch.float32)
    nibbles = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2).to(torch.int32)
    magnitude = nibbles & 7
    # Twice the value: 0 1 2 3 of the subnormal and the first binade, then two steps a binade.
    doubled = torch.where(magnitude < 2, magnitude, (2 + (magnitude & 1)) << ((magnitude >> 1) - 1).clamp(min=0))
    values = doubled.to(torch.float32) * 0.5
    return torch.where(nibbles >= 8, -values, values)


def encode(values: Tensor, fmt: str) -> Tensor:
    """fp32 values that are values of ``fmt`` -> uint8 codes; the sign of zero is kept."""
    if fmt == "e4m3":
        return values.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).view(torch.uint8)
    doubled = (values.abs() * 2.0).to(torch.int32)
    magnitude = torch.where(doubled < 4, doubled, torch.where(doubled < 8, 2 + doubled // 2, 4 + doubled // 4))
    codes = magnitude.to(torch.uint8) | (values.signbit().to(torch.uint8) << 3)
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def decode_scale(sf: Tensor, sf_kind: str) -> Tensor:
    """fp32 scales of stored ones."""
    if sf_kind == "f32":
        return sf
    if sf_kind == "e4m3":
        return decode(sf, "e4m3")
    codes = sf.view(torch.uint8).to(torch.int32)
    bits = (codes << 23).masked_fill(codes == 0, 0x00400000).masked_fill(codes == 255, 0x7FC00000)
    return bits.view(torch.float32)
