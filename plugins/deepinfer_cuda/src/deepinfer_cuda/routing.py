"""What ``moe.dispatch`` hands on: which row each (token, choice) takes, known on the device only.

A row for every choice, sorted by (expert, token); rows of masked choices come last and have weight 0. Sorting waits
until somebody asks, because ``moe.experts`` knows how many experts there are and cuts the rows into tiles in the same
launch.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from attrs import define, field
from torch import Tensor

from deepinfer_cuda.tensors import QuantTensor
from deepinfer_cuda.tl.moe.sort import FEW, slots, slots_of_few, sort_few_pairs, sort_pairs

NO_EXPERT = 1 << 31
"""Expert of the rows of masked choices, for the plain op."""


@define(eq=False)
class Tiles:
    """Rows in tiles: tile i takes rows ``[begin, begin + rows)`` of its expert; 0 rows: no tile."""

    expert: Tensor
    begin: Tensor
    rows: Tensor


def tiles_of(ends: Tensor, rows: int, tile: int) -> Tiles:
    """Tiles of the segments that end at ``ends`` int32 ``[E]``, in slots as ``sort_pairs`` lays them."""
    experts = ends.shape[0]
    begins = torch.nn.functional.pad(ends[:-1], (1, 0))
    first = begins // tile + torch.arange(experts, dtype=torch.int32, device=ends.device)
    slot = torch.arange(slots(rows, experts, tile), dtype=torch.int32, device=ends.device)
    expert = torch.searchsorted(first, slot, right=True, out_int32=True) - 1
    past = (slot - first[expert]) * tile
    begin = begins[expert] + past
    count = (ends[expert] - begin).clamp(0, tile)
    return Tiles(expert, begin, count.to(torch.int32))


@define(eq=False)
class Routing:
    """Rows of the choices ``idx`` int64 ``[T, k]`` with their ``weight`` fp32 ``[T, k]``, both contiguous."""

    idx: Tensor
    weight: Tensor
    _sorted: tuple[Tensor, Tensor, Tensor] | None = None

    @property
    def rows(self) -> int:
        return self.idx.numel()

    @property
    def row_of(self) -> Tensor:
        """int32 ``[T, k]``: the row of a choice, -1 if it is masked."""
        return self._order()[0].view(self.idx.shape)

    @property
    def pair_of(self) -> Tensor:
        """int32 ``[M]``: token * k + choice of a row, -1 behind the last one."""
        return self._order()[1]

    @property
    def row_weight(self) -> Tensor:
        """fp32 ``[M]``."""
        return self._order()[2]

    def tiles(self, experts: int, tile: int) -> Tiles:
        """Sort, and cut each expert's rows into tiles of ``tile``."""
        pairs, device = self.rows, self.idx.device
        order = torch.empty(2, pairs, dtype=torch.int32, device=device)
        weight = torch.empty(pairs, dtype=torch.float32, device=device)
        few = pairs <= FEW
        count = (slots_of_few if few else slots)(pairs, experts, tile)
        found = torch.empty(3 * count + experts, dtype=torch.int32, device=device)
        expert, begin, rows, ends = found.split((count, count, count, experts))
        launch = (sort_few_pairs if few else sort_pairs)(experts=experts, tile=tile)
        launch(self.idx.view(-1), self.weight.view(-1), order[0], order[1], weight, ends, expert, begin, rows)
        self._sorted = (order[0], order[1], weight)
        return Tiles(expert, begin, rows)

    def plain_tiles(self, experts: int, tile: int) -> Tiles:
        """The same with torch operations."""
        ids = self.idx.view(-1)
        ordered = ids.masked_fill(ids < 0, NO_EXPERT).sort().values
        each = torch.arange(experts, device=ids.device)
        return tiles_of(torch.searchsorted(ordered, each, right=True, out_int32=True), self.rows, tile)

    def _order(self) -> tuple[Tensor, Tensor, Tensor]:
        """The same order without knowing the number of experts."""
        if self._sorted is None:
            ids = self.idx.view(-1)
            masked = ids < 0
            order = ids.masked_fill(masked, NO_EXPERT).sort(stable=True).indices
            place = torch.empty_like(order)
            place.scatter_(0, order, torch.arange(self.rows, device=ids.device))
            behind = masked[order]
            self._sorted = (
                place.masked_fill(masked, -1).to(torch.int32),
                order.masked_fill(behind, -1).to(torch.int32),
                self.weight.view(-1)[order].masked_fill(behind, 0.0),
            )
        return self._sorted


@define(eq=False)
class Handle:
    """What combine needs of a dispatch. The plain op reads ``rows``."""

    routing: Routing
    tokens: int
    dtype: torch.dtype = torch.bfloat16
    masked: bool = True

    @property
    def sent(self) -> int:
        return self.routing.rows

    @property
    def rows(self) -> Tensor:
        """int64 ``[T, k]``, each token's rows in ascending expert id, -1 (first) for masked choices."""
        return self.routing.row_of.long().sort(dim=1).values


@define(eq=False)
class Dispatched:
    """Tokens ``given`` (bf16 ``[T, H]``, or quantised) on the way to their experts."""

    given: Tensor | QuantTensor
    routing: Routing
    handle: Handle = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.handle = Handle(self.routing, self.given.shape[0])

    @property
    def width(self) -> int:
        return self.given.shape[1]

    @property
    def exact(self) -> Tensor:
        """bf16 ``[T, H]``: what the products read of each token."""
        return self.given.exact if isinstance(self.given, QuantTensor) else self.given

    @property
    def exact_rows(self) -> Tensor:
        """bf16 ``[M, H]``: the same, sorted."""
        return self.exact.index_select(0, self._tokens())

    @property
    def x(self) -> Tensor | QuantTensor:
        """``[M, H]`` rows in the form of what was given; rows behind the last one hold something."""
        if isinstance(self.given, Tensor):
            return self.given.index_select(0, self._tokens())
        q, at = self.given, self._tokens()
        rows = self.exact_rows
        return QuantTensor(fmt=q.fmt, group=q.group, sf_kind=q.sf_kind, sf=q.sf.index_select(0, at), exact=rows)

    @property
    def weight(self) -> Tensor:
        return self.routing.row_weight

    @property
    def segments(self) -> tuple[tuple[int, int, int], ...]:
        """(expert, begin, end) of each expert that has rows. Waits for the device: for tests and tools."""
        ids = self.routing.idx
        counts = torch.bincount(ids.view(-1).clamp(min=-1) + 1).tolist()[1:]
        found, begin = [], 0
        for expert, count in enumerate(counts):
            if count:
                found.append((expert, begin, begin + count))
                begin += count
        return tuple(found)

    def plain(self) -> Any:
        """The form that the plain ``moe.experts`` takes."""
        pair = self.routing.pair_of.long()
        expert = self.routing.idx.view(-1)[pair.clamp(min=0)].masked_fill(pair < 0, NO_EXPERT)
        values = self.exact_rows.float()
        return SimpleNamespace(x=values, weight=self.weight, segments=(), handle=self.handle, expert=expert)

    def _tokens(self) -> Tensor:
        return self.routing.pair_of.long().clamp(min=0).div(self.routing.idx.shape[1], rounding_mode="floor")
