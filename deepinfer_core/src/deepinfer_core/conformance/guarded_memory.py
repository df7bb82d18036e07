"""Known bytes before and behind every tensor that is made while it is in force: also those that an op makes for itself.

A sanitizer does not see a kernel write past the end of its tensor where torch's allocator has other memory of the
process behind it. Guards do. What an op leaves unwritten holds huge numbers, not what lay there before.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from deepinfer_core.conformance.failures import fail

PAD = 512
"""Bytes on each side: what torch aligns its own memory to."""
GUARD, UNWRITTEN = 0xA5, 0x7F
"""The second is 3.39e38 in bf16 and fp32, NaN in FP8 and a huge integer: nothing that an op gives."""
MAKES = frozenset(
    {
        *("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"),
        *("zeros", "zeros_like", "new_zeros", "full", "full_like", "new_full", "_to_copy", "clone"),
    }
)
"""Functions of aten that give memory of their own."""


class GuardedMemory(TorchDispatchMode):  # type: ignore[misc]  # torch is not there where types are checked
    """``with GuardedMemory() as memory: ...; memory.verify()``. Tensors with gaps between their rows stay as they are.

    :ivar guarded: how many tensors have got guards.
    """

    def __init__(self) -> None:
        super().__init__()
        self.guarded = 0
        self._held: list[tuple[Tensor, int]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if name not in MAKES or not isinstance(made, Tensor) or not made.is_contiguous() or made.is_pinned():
            return made
        return self._with_guards(made, "empty" not in name)

    def _with_guards(self, made: Tensor, has_values: bool) -> Tensor:
        size = made.numel() * made.element_size()
        held = torch.full((size + 2 * PAD,), GUARD, dtype=torch.uint8, device=made.device)
        held[PAD : PAD + size].fill_(UNWRITTEN)
        self._held.append((held, size))
        self.guarded += 1
        found = held[PAD : PAD + size].view(made.dtype).view(made.shape)
        return found.copy_(made) if has_values else found

    def verify(self, **facts: object) -> None:
        """Look at all guards, and begin anew. Raises ConformanceFailure, with ``facts``, where one was written."""
        __tracebackhide__ = True
        held, self._held = self._held, []
        with _disable_current_modes():
            sides = [side for buffer, size in held for side in (buffer[:PAD], buffer[PAD + size :])]
            devices = {side.device for side in sides}
            if all(bool((torch.cat([s for s in sides if s.device == d]) == GUARD).all()) for d in devices):
                return
            for number, side in enumerate(sides):
                wrong = (side != GUARD).nonzero().flatten().tolist()
                if wrong:
                    where = f"{wrong[0]} bytes behind" if number % 2 else f"{PAD - wrong[0]} bytes before"
                    size = held[number // 2][1]
                    fail("memory beside a tensor was written", **facts, where=f"{where} {size} bytes", bytes=len(wrong))
