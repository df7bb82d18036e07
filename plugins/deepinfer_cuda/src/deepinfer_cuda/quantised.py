"""Where a cast of the row kernel goes: the forms of a quantised tensor that it writes."""

from __future__ import annotations

from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from deepinfer_cuda.tensors import QuantTensor

Cast = tuple[str, int, str]


@frozen(eq=False)
class Target:
    """Memory for a cast of rows ``[..., K]``.

    Products on SM90 read E4M3 activations as the bf16 numbers that their codes stand for (exact where scales are powers
    of two): these are written, and the codes are left to whoever asks for them. Everything else is codes.

    :ivar sf: scales ``[..., K / group]``, uint8 or fp32. ``codes``, ``exact``: None where that form is not written.
    """

    cast: Cast
    sf: Tensor
    codes: Tensor | None
    exact: Tensor | None

    @classmethod
    def empty(cls, shape: torch.Size, cast: Cast, device: torch.device, *, want_exact: bool = False) -> Target:
        fmt, group, kind = cast
        *front, width = shape
        as_values = fmt == "e4m3" and kind == "ue8m0"
        sf = torch.empty((*front, width // group), dtype=torch.float32 if kind == "f32" else torch.uint8, device=device)
        codes = exact = None
        if as_values or want_exact:
            exact = torch.empty(shape, dtype=torch.bfloat16, device=device)
        if not as_values:
            size = width if fmt == "e4m3" else width // 2
            codes = torch.empty((*front, size), dtype=torch.uint8, device=device)
        return cls(cast, sf, codes, exact)

    @classmethod
    def of(cls, out: QuantTensor) -> Target:
        """The forms that ``out`` holds; what it holds beside codes and bf16 is copied by :meth:`refresh`."""
        forms = out.forms
        exact = out.exact if "exact" in forms else None
        codes = out.data if "data" in forms or exact is None else None
        return cls((out.fmt, out.group, out.sf_kind), out.sf, codes, exact)

    def arguments(self, grid: torch.Size) -> dict[str, Any]:
        """What the kernel writes, over rows ``[n, h, width]``."""
        n, heads, width = grid
        fmt, group, _ = self.cast
        code_bytes = width if fmt == "e4m3" else width // 2
        return {
            "exact": None if self.exact is None else self.exact.view(grid),
            "codes": None if self.codes is None else self.codes.view(n, heads, code_bytes),
            "scales": self.sf.view(torch.uint8).view(n, heads, width // group * self.sf.element_size()),
        }

    def quantised(self) -> QuantTensor:
        fmt, group, kind = self.cast
        exact = self.exact if kind != "f32" else None  # rounded there: not what the codes stand for
        return QuantTensor(fmt=fmt, group=group, sf_kind=kind, sf=self.sf, data=self.codes, exact=exact)
