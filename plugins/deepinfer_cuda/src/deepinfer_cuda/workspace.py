"""Memory of our products: partial sums, and counters of the blocks that have arrived."""

from __future__ import annotations

import torch
from attrs import define, field
from torch import Tensor

from deepinfer_cuda.tl.dense import COUNTERS, WORKSPACE

RESERVED = 4
"""Workspaces that are made at load time: a stream that is being captured must find one, for memory that is zeroed
during a capture is zeroed only when the graph runs."""


@define(eq=False)
class Workspace:
    """Of one stream, whose launches follow each other. Counters are 0 between launches."""

    sums: Tensor
    counters: Tensor
    _views: dict[tuple[int, int], Tensor] = field(factory=dict)

    @classmethod
    def make(cls, device: torch.device) -> Workspace:
        sums = torch.empty(WORKSPACE, dtype=torch.float32, device=device)
        return cls(sums, torch.zeros(COUNTERS, dtype=torch.int32, device=device))

    def partial(self, tile: int, rows: int) -> Tensor:
        """The sums as ``[places, tile, rows]``."""
        view = self._views.get((tile, rows))
        if view is None:
            size = tile * rows
            view = self._views[tile, rows] = self.sums[: WORKSPACE // size * size].view(-1, tile, rows)
        return view


_IN_USE: dict[tuple[int | None, int], Workspace] = {}
_SPARE: dict[int | None, list[Workspace]] = {}


def reserve(device: torch.device) -> None:
    """Make what streams of ``device`` take later, once for each device."""
    if device.type == "cuda" and device.index not in _SPARE:
        _SPARE[device.index] = [Workspace.make(device) for _ in range(RESERVED)]


def workspace(device: torch.device) -> Workspace:
    """That of the current stream."""
    key = (device.index, torch.cuda.current_stream(device).cuda_stream)
    space = _IN_USE.get(key)
    if space is not None:
        return space
    spare = _SPARE.get(device.index)
    if not spare:
        space = Workspace.make(device)
        if torch.cuda.is_current_stream_capturing():
            return space  # of this launch alone: its counters are zeroed as a part of the graph
    else:
        space = spare.pop()
    _IN_USE[key] = space
    return space
