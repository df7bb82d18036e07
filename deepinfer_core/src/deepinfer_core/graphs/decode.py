"""A model's forward of decode steps, recorded for each number of rows when it is first needed, or all before."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from attrs import define, field

from deepinfer_core.errors import EngineError
from deepinfer_core.graphs.recorded import Capture
from deepinfer_core.graphs.sampling import SampleGraphs
from deepinfer_core.graphs.sizes import covering
from deepinfer_core.graphs.static_inputs import CopyAll, StaticInputs, copy_each, row_arrays, signature
from deepinfer_core.graphs.verifying import VerifyGraphs

Tensor = Any
Forward = Callable[[Any, Any], Tensor]
Tell = Callable[[int, int], None]


@define(eq=False)
class _Recorded:
    """Graphs of steps with the same fields: their inputs, and their launches by size."""

    static: StaticInputs
    launches: dict[int, Callable[[], None]] = field(factory=dict)


class DecodeGraphs:
    """Stands for ``model.forward`` in decode steps.

    :param forward: The model's own.
    :param caches: Those that every step gets.
    :param capture: ``Backend.capture``.
    :param sizes: Numbers of rows to record, ascending; no step has more rows than the last.
    :param placeholder: One placeholder row, on the device.
    :param copy_all: ``Backend.copy_all``, or one copy after the other.
    """

    def __init__(
        self,
        forward: Forward,
        caches: Any,
        capture: Capture,
        sizes: Sequence[int],
        placeholder: Any,
        *,
        copy_all: CopyAll = copy_each,
    ) -> None:
        self._copy_all = copy_all
        self._forward, self._caches, self._capture = forward, caches, capture
        self.sizes = tuple(sizes)
        self._placeholder = placeholder
        self._recorded: dict[Hashable, _Recorded] = {}
        self.hidden: Tensor = None
        """``[max rows, D]``, the result of all graphs: read by the phases behind a forward before the next one is
        launched on the same queue."""
        self.sampling: SampleGraphs | VerifyGraphs | None = None
        """What comes behind a forward, where it can be recorded as well."""
        self.num_launched = 0
        """Steps that ran from a graph; the first of each size runs before it is recorded."""

    def __call__(self, inputs: Any, caches: Any) -> Tensor:
        """Hidden rows ``[T, D]`` of a decode step; valid until the next call.

        :param caches: The same as ever.
        :raises GraphCaptureError: the step cannot be recorded.
        """
        rows = len(inputs.input_ids)
        size = covering(self.sizes, rows)
        if size is None or caches is not self._caches:
            raise EngineError(
                f"a decode step of {rows} rows does not fit its graphs",
                reason=f"they were made for at most {self.sizes[-1]} rows, and for the caches of this engine",
                remedy="this is a bug of the engine; run with --no-graphs and report it",
                details={"rows": rows, "sizes": list(self.sizes)},
            )
        keys, arrays = row_arrays(inputs)
        recorded = self._of(inputs, signature(inputs, keys))
        recorded.static.load(arrays, rows, size)
        launch = recorded.launches.get(size)
        if launch is None:
            self._record(recorded, size)
        else:
            launch()
            self.num_launched += 1
        return self.hidden[:rows]

    def record_all(self, tell: Tell | None = None) -> None:
        """Record every size with placeholders alone, the largest first: the smaller ones then live in its memory.

        :param tell: Gets (recorded, all) behind each.
        :raises GraphCaptureError: a step cannot be recorded.
        """
        keys, arrays = row_arrays(self._placeholder)
        recorded = self._of(self._placeholder, signature(self._placeholder, keys))
        for done, size in enumerate(reversed(self.sizes), start=1):
            if size not in recorded.launches:
                recorded.static.load(arrays, 1, size)
                self._record(recorded, size)
            if self.sampling is not None:
                self.sampling.record(size)
            if tell is not None:
                tell(done, len(self.sizes))

    @property
    def num_recorded(self) -> int:
        return sum(len(recorded.launches) for recorded in self._recorded.values())

    def _of(self, inputs: Any, key: Hashable) -> _Recorded:
        found = self._recorded.get(key)
        if found is None:
            static = StaticInputs(inputs, self._placeholder, self.sizes[-1], self._copy_all)
            found = self._recorded[key] = _Recorded(static)
        return found

    def _record(self, recorded: _Recorded, size: int) -> None:
        record = recorded.static.view(size)

        def step() -> None:
            hidden = self._forward(record, self._caches)
            if not hasattr(hidden, "new_empty") or len(hidden) != size:
                got = f"{len(hidden)} rows" if hasattr(hidden, "__len__") else type(hidden).__name__
                raise EngineError(f"model.forward returned {got}, expected {size}", details={"op": "model.forward"})
            if self.hidden is None:  # at the eager run, so outside the memory of any graph
                self.hidden = hidden.new_empty((self.sizes[-1], *hidden.shape[1:]))
            self.hidden[:size].copy_(hidden)

        recorded.launches[size] = self._capture(step)
