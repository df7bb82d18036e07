"""Logits and sampling behind a decode graph, recorded for its sizes where sampling depends on nothing but the logits.

A step whose requests are all greedy launches a dozen small kernels behind its forward, and the host needs as long for
them as for the forward itself. A sampler says which steps these are (``deepinfer_core.interfaces.StaticSampler``).

Where the backend has host memory that a graph can write (``host_like``), the copies of the results are part of the
graph, and the host reads them when the step is over. They lie where they are until the next launch, which comes behind
the commit of the step (``deepinfer_core.pipeline``).
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
Arrays = dict[str, Any]


class SampleGraphs:
    """Stands for ``model.logits`` and ``sampler.sample`` in steps of one row a request.

    :param decode: The graphs that the hidden rows come from.
    :param logits: ``model.logits``.
    :param host_like: ``Backend.host_like``, or None.
    """

    def __init__(
        self,
        decode: DecodeGraphs,
        logits: Callable[[Tensor], Tensor],
        sampler: StaticSampler,
        capture: Capture,
        host_like: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self._decode, self._logits, self._sampler, self._capture = decode, logits, sampler, capture
        self._host_like = host_like
        self._made: dict[int, Recorded[Arrays]] = {}
        self._on_host: dict[int, Arrays] = {}
        """By size, the results as the host reads them; nothing where they are fetched from the device."""
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
            found = self._record(size).take_first()
        else:
            made.launch()
            self.num_launched += 1
            found = made.latest
        # Arrays of its own for each step: by these a backend tells apart of which step it copies results.
        given = {name: value[:rows] for name, value in found.items()}
        on_host = self._on_host.get(size)
        if on_host:
            device_ids = given["sampled_ids"]
            given = {name: value[:rows] for name, value in on_host.items()}
            given["sampled_ids_device"] = device_ids
        return SamplerOutput(**given)

    def record(self, size: int) -> None:
        """Record ``size`` rows now, behind a decode step of that size; nothing where there are no graphs so large."""
        if size <= MOST_ROWS and size not in self._made:
            self._record(size).take_first()

    @property
    def num_recorded(self) -> int:
        return len(self._made)

    def _record(self, size: int) -> Recorded[Arrays]:
        hidden, host_like = self._decode.hidden[:size], self._host_like
        copies: dict[str, Tensor] = {}

        def step() -> Arrays:
            found = _arrays(self._sampler.sample_static(self._logits(hidden)))
            if host_like is not None:
                if not copies:  # at the run before the recording
                    copies.update((name, host_like(value)) for name, value in found.items())
                for name, value in found.items():
                    copies[name].copy_(value, non_blocking=True)
            return found

        made = self._made[size] = Recorded(self._capture, step)
        self._on_host[size] = {name: copy.numpy() for name, copy in copies.items()}
        return made


def _arrays(output: SamplerOutput) -> Arrays:
    """What is set of ``output``, by name."""
    values = ((name, getattr(output, name)) for name in SamplerOutput.FIELDS)
    return {name: value for name, value in values if hasattr(value, "shape")}
