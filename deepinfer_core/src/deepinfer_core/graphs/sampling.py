"""Logits and sampling behind a decode graph, recorded for its sizes where sampling depends on nothing but the logits.

A step whose requests are all greedy launches a dozen small kernels behind its forward, and the host needs as long for
them as for the forward itself. A sampler says which steps these are (``deepinfer_core.interfaces.StaticSampler``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from deepinfer_core.graphs.recorded import Capture, Recorded
from deepinfer_core.graphs.sizes import covering
from deepinfer_core.records import SamplerOutput

if TYPE_CHECKING:
    from deepinfer_core.graphs.decode import DecodeGraphs
    from deepinfer_core.interfaces import StaticSampler, Tensor

MOST_ROWS = 64
"""Behind larger steps the host has time to launch op by op, and logits of all sizes would need much memory."""


class SampleGraphs:
    """Stands for ``model.logits`` and ``sampler.sample`` in steps of one row a request.

    :param decode: The graphs that the hidden rows come from.
    :param logits: ``model.logits``.
    """

    def __init__(
        self, decode: DecodeGraphs, logits: Callable[[Tensor], Tensor], sampler: StaticSampler, capture: Capture
    ) -> None:
        self._decode, self._logits, self._sampler, self._capture = decode, logits, sampler, capture
        self._made: dict[int, Recorded[SamplerOutput]] = {}
        self.num_launched = 0
        """Steps that were sampled from a graph; the first of each size runs before it is recorded."""

    def takes(self, rows: int, inputs: Any) -> bool:
        """Whether a step of ``rows`` rows with these ``SamplerInputs`` runs here."""
        size = covering(self._decode.sizes, rows)
        return size is not None and size <= MOST_ROWS and self._sampler.is_static(inputs)

    def __call__(self, rows: int) -> SamplerOutput:
        """What the sampler gives for the ``rows`` rows of the latest decode step; valid until the next call.

        :raises GraphCaptureError: the call cannot be recorded.
        """
        size = covering(self._decode.sizes, rows) or rows
        made = self._made.get(size)
        if made is None:
            return _rows_of(self._record(size).take_first(), rows)
        made.launch()
        self.num_launched += 1
        return _rows_of(made.latest, rows)

    def record(self, size: int) -> None:
        """Record ``size`` rows now, behind a decode step of that size; nothing where there are no graphs so large."""
        if size <= MOST_ROWS and size not in self._made:
            self._record(size).take_first()

    @property
    def num_recorded(self) -> int:
        return len(self._made)

    def _record(self, size: int) -> Recorded[SamplerOutput]:
        hidden = self._decode.hidden[:size]
        made = Recorded(self._capture, lambda: self._sampler.sample_static(self._logits(hidden)))
        self._made[size] = made
        return made


def _rows_of(output: SamplerOutput, rows: int) -> SamplerOutput:
    """The first ``rows`` rows. Each call gives arrays of its own, by which a backend tells the steps apart that it
    copies results of."""
    found = ((name, getattr(output, name)) for name in SamplerOutput.FIELDS)
    return SamplerOutput(**{name: value[:rows] for name, value in found if hasattr(value, "shape")})
