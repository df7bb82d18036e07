"""A model's drafts, recorded for a number of requests: the block, and each draft of it.

Host time of launches matters where a step is short, that is with few requests; larger steps propose op by op. A block
comes from one graph and each draft from another, because the sampler draws in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deepinfer_core.graphs.recorded import Capture, Recorded
from deepinfer_core.graphs.sizes import covering
from deepinfer_core.graphs.static_inputs import CopyAll, copy_each
from deepinfer_core.interfaces import DraftBlock, Tensor

Rows = Mapping[str, Tensor]
MOST_REQUESTS = 32
"""Behind larger steps the host has time to launch a block op by op, and logits of all sizes would need much memory."""


def drafted_sizes(max_requests: int) -> tuple[int, ...]:
    """Numbers of requests to record, ascending: powers of two."""
    most = min(max_requests, MOST_REQUESTS)
    return (*(1 << i for i in range(most.bit_length()) if 1 << i < most), most)


class DraftGraphs:
    """Stands for ``model.draft``.

    :param model: With ``draft_rows`` and ``propose`` (``deepinfer_core.interfaces.DraftingModel``).
    :param sizes: Numbers of requests to record, ascending.
    :param placeholder: ``draft_rows`` of one placeholder request.
    """

    def __init__(
        self,
        model: Any,
        caches: Any,
        capture: Capture,
        sizes: Sequence[int],
        placeholder: Rows,
        *,
        copy_all: CopyAll = copy_each,
    ) -> None:
        self._model, self._caches, self._capture, self._copy_all = model, caches, capture, copy_all
        self.sizes = tuple(sizes)
        self._placeholder = placeholder
        self._requests: dict[int, _Requests] = {}

    def __call__(
        self, hidden: Tensor, inputs: Any, sampled_ids: Tensor, accepted: Tensor | None, caches: Any
    ) -> DraftBlock:
        """As ``model.draft``; the block is valid until the next call. Raises GraphCaptureError."""
        size = covering(self.sizes, len(sampled_ids))
        if size is None:
            rows = self._model.draft_rows(inputs, sampled_ids, accepted)
            block: DraftBlock = self._model.propose(rows, caches)
            return block
        found, count = self.load(size, inputs, sampled_ids, accepted), len(sampled_ids)
        if found.block is None:
            memory = found.memory
            found.block = Recorded(self._capture, lambda: self._model.propose(memory, self._caches))
            return _Unrecorded(found, count, found.block.take_first())
        found.block.launch()
        return _Drafts(found, count, self._capture)

    def load(self, size: int, inputs: Any, sampled_ids: Tensor, accepted: Tensor | None) -> _Requests:
        """Put what the block of a step starts from into the memory of ``size`` requests, placeholders behind it."""
        rows = self._model.draft_rows(inputs, sampled_ids, accepted)
        found = self._requests.get(size)
        if found is None:
            found = self._requests[size] = _Requests(self._placeholder, size, sampled_ids)
        self._copy_all(*found.parts(rows, len(sampled_ids)))
        return found

    def memory(self, size: int) -> Rows:
        """What :meth:`load` filled."""
        return self._requests[size].memory

    @property
    def num_recorded(self) -> int:
        """Graphs: one for each block, one for each draft of it."""
        return sum(1 + len(found.steps) for found in self._requests.values())


class _Requests:
    """What the graphs of ``size`` requests read, and the graphs."""

    def __init__(self, placeholder: Rows, size: int, sampled_ids: Tensor) -> None:
        self.size = size
        self.previous: Tensor = sampled_ids.new_zeros((size,))
        self.memory: dict[str, Tensor] = {}
        self._pads: dict[str, Tensor] = {}
        for name, pad in placeholder.items():
            memory = pad.new_empty((size * len(pad), *pad.shape[1:]))
            memory.view((size, *pad.shape)).copy_(pad)
            self.memory[name] = memory
            self._pads[name] = memory.clone()
        self._each = {name: len(pad) for name, pad in placeholder.items()}
        self._slices: dict[int, tuple[list[Tensor], list[Tensor]]] = {}
        self.block: Recorded[Any] | None = None
        self.steps: dict[int, Recorded[tuple[Tensor, Tensor | None]]] = {}

    def parts(self, rows: Rows, count: int) -> tuple[list[Tensor], list[Tensor]]:
        """(targets, sources) that put ``rows`` of ``count`` requests into the memory, placeholders behind them."""
        found = self._slices.get(count)
        if found is None:
            ends = {name: count * each for name, each in self._each.items()}
            targets = [self.memory[name][:end] for name, end in ends.items()]
            pads: list[Tensor] = []
            if count < self.size:
                targets += [self.memory[name][end:] for name, end in ends.items()]
                pads = [self._pads[name][end:] for name, end in ends.items()]
            found = self._slices[count] = targets, pads
        return found[0], [*(rows[name] for name in self.memory), *found[1]]


class _Unrecorded:
    """The block of the run before the recording: its drafts are made op by op."""

    def __init__(self, requests: _Requests, count: int, block: DraftBlock) -> None:
        self._requests, self._count, self._block = requests, count, block

    def step(self, k: int, previous: Tensor) -> tuple[Tensor, Tensor | None]:
        self._requests.previous[: self._count].copy_(previous.reshape(-1))
        return _cut(self._block.step(k, self._requests.previous), self._count)


class _Drafts:
    """A block that was launched; each draft is recorded when it is first asked for."""

    def __init__(self, requests: _Requests, count: int, capture: Capture) -> None:
        self._requests, self._count, self._capture = requests, count, capture

    def step(self, k: int, previous: Tensor) -> tuple[Tensor, Tensor | None]:
        requests = self._requests
        requests.previous[: self._count].copy_(previous.reshape(-1))
        made = requests.steps.get(k)
        if made is not None:
            made.launch()
            return _cut(made.latest, self._count)
        block = requests.block

        def step() -> tuple[Tensor, Tensor | None]:
            result: tuple[Tensor, Tensor | None] = block.latest.step(k, requests.previous)  # type: ignore[union-attr]
            return result

        made = requests.steps[k] = Recorded(self._capture, step)
        return _cut(made.take_first(), self._count)


def _cut(result: tuple[Tensor, Tensor | None], count: int) -> tuple[Tensor, Tensor | None]:
    logits, confidence = result
    return logits[:count], None if confidence is None else confidence[:count]
