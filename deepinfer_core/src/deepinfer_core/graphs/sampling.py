"""Logits and sampling behind a decode graph, recorded for its sizes where sampling depends on nothing but the logits.

A step whose requests are all greedy launches a dozen small kernels behind its forward, and the host needs as long for
them as for the forward itself. A sampler says which steps these are (``deepinfer_core.interfaces.StaticSampler``).
Steps that verify drafts are those of ``verifying``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from deepinfer_core.graphs.recorded import Capture
from deepinfer_core.graphs.results import HostLike, RecordedArrays, arrays_of, cut
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
    :param host_like: ``Backend.host_like``, or None.
    """

    def __init__(
        self,
        decode: DecodeGraphs,
        logits: Callable[[Tensor], Tensor],
        sampler: StaticSampler,
        capture: Capture,
        host_like: HostLike | None = None,
    ) -> None:
        self._decode, self._logits, self._sampler, self._capture = decode, logits, sampler, capture
        self._host_like = host_like
        self._made: dict[int, RecordedArrays] = {}
        self.num_launched = 0
        """Steps that were sampled from a graph; the first of each size runs before it is recorded."""

    def takes(self, requests: int, inputs: Any) -> bool:
        """Whether a step of ``requests`` requests with these ``SamplerInputs`` runs here."""
        size = covering(self._decode.sizes, requests)
        return size is not None and size <= MOST_ROWS and self._sampler.is_static(inputs)

    def sample(self, requests: int, rows: int) -> tuple[SamplerOutput, SamplerOutput]:
        """What the sampler gives for the rows of the latest decode step, valid until the next call; and what the next
        step reads of it, on the device.

        :raises GraphCaptureError: the call cannot be recorded.
        """
        size = covering(self._decode.sizes, requests) or requests
        made = self._made.get(size)
        if made is None:
            made = self._record(size)
            found = made.first
        else:
            found = made.launch()
            self.num_launched += 1
        return sampled(found, made.on_host, requests, rows)

    def record(self, size: int) -> None:
        """Record ``size`` rows now, behind a decode step of that size; nothing where there are no graphs so large."""
        if size <= MOST_ROWS and size not in self._made:
            self._record(size)

    @property
    def num_recorded(self) -> int:
        return len(self._made)

    def _record(self, size: int) -> RecordedArrays:
        hidden = self._decode.hidden[:size]

        def step() -> dict[str, Any]:
            return arrays_of(self._sampler.sample_static(self._logits(hidden)))

        made = self._made[size] = RecordedArrays(self._capture, step, self._host_like)
        return made


def sampled(
    on_device: dict[str, Any], on_host: dict[str, Any], requests: int, rows: int
) -> tuple[SamplerOutput, SamplerOutput]:
    """The result of a step, and what the next one reads of it, from those of a graph."""
    given = cut(on_device, requests, rows)
    onward = SamplerOutput(sampled_ids=given["sampled_ids"], accepted=given.get("accepted"))
    return SamplerOutput(**(cut(on_host, requests, rows) if on_host else given)), onward
