"""Tensors inside buffers of known bytes: an op that writes beside its output, or into its input, is found."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_core.conformance.failures import fail

PAD = 256
"""Bytes before and behind each tensor; also its alignment."""


class Guards:
    """Makes guarded tensors, and looks at them when the test is done.

    ``guarded((4, 8), torch.float32)`` is filled with bytes that no op writes; ``guarded.of(tensor)`` holds the values
    of ``tensor``; with ``frozen=True`` those must not change either.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._made: list[tuple[str, Tensor, Tensor, int, int, bool]] = []

    def __call__(self, shape: tuple[int, ...], dtype: torch.dtype, *, name: str = "") -> Tensor:
        """A tensor ``shape`` of ``dtype`` on the device, contiguous, whose bytes are poison (a NaN, a huge integer)."""
        return self._place(torch.full((), 0, dtype=dtype).element_size(), tuple(shape), dtype, None, name, False)

    def of(self, tensor: Tensor, *, name: str = "", frozen: bool = False) -> Tensor:
        """A contiguous copy of ``tensor`` on the device. ``frozen``: the op must leave its values alone."""
        return self._place(tensor.element_size(), tuple(tensor.shape), tensor.dtype, tensor, name, frozen)

    def _place(
        self, size: int, shape: tuple[int, ...], dtype: torch.dtype, source: Tensor | None, name: str, frozen: bool
    ) -> Tensor:
        count = 1
        for length in shape:
            count *= length
        nbytes = count * size
        pattern = ((torch.arange(nbytes + 2 * PAD) * 37 + 91) % 251).to(torch.uint8)
        pattern[PAD : PAD + nbytes] = 0xFF
        buffer = pattern.to(self._device, copy=True)
        inside = (
            buffer[PAD : PAD + nbytes].view(dtype).view(shape)
            if nbytes
            else torch.empty(shape, dtype=dtype, device=self._device)
        )
        if source is not None and nbytes:
            inside.copy_(source)
            if frozen:
                pattern = buffer.cpu().clone()
        self._made.append((name or f"tensor {len(self._made)} {shape}", buffer, pattern, PAD, nbytes, frozen))
        return inside

    def verify(self) -> None:
        """Raise ConformanceFailure if anything outside was written, or a frozen tensor changed."""
        __tracebackhide__ = True
        for name, buffer, pattern, start, nbytes, frozen in self._made:
            changed = buffer.cpu() != pattern
            inside = changed[start : start + nbytes]
            if frozen and bool(inside.any()):
                fail("an input was changed", tensor=name, byte=int(inside.int().argmax()))
            if not frozen:
                inside.zero_()
            if bool(changed.any()):
                place = int(changed.int().argmax())
                where = (
                    f"{start - place} bytes before it" if place < start else f"{place - start - nbytes} bytes behind"
                )
                fail("memory beside a tensor was written", tensor=name, where=where, bytes=int(changed.sum()))
