"""Calls that give arrays by name, recorded, with the copies of these arrays that the host reads.

Where the backend has host memory that a graph can write (``host_like``), the copies are part of the graph, and the host
reads them when the step is over. They lie where they are until the next launch, which comes behind the commit of the
step (``deepinfer_core.pipeline``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from deepinfer_core.graphs.recorded import Capture, Recorded
from deepinfer_core.records import SamplerOutput

if TYPE_CHECKING:
    from deepinfer_core.interfaces import Tensor

Arrays = dict[str, Any]
HostLike = Callable[[Any], Any]
"""``Backend.host_like``."""


class RecordedArrays:
    """The graph of ``call``, behind the run of it that comes before a recording.

    :param host_like: None: the results stay on the device.
    """

    def __init__(self, capture: Capture, call: Callable[[], Arrays], host_like: HostLike | None = None) -> None:
        copies: dict[str, Tensor] = {}

        def copied() -> Arrays:
            found = call()
            if host_like is not None:
                if not copies:  # at the run before the recording
                    copies.update((name, host_like(value)) for name, value in found.items())
                for name, value in found.items():
                    copies[name].copy_(value, non_blocking=True)
            return found

        self._recorded = Recorded(capture, copied)
        self.first = self._recorded.take_first()
        """What that run returned."""
        self.on_host: Arrays = {name: copy.numpy() for name, copy in copies.items()}
        """The results as the host reads them; empty where they are fetched from the device."""

    def launch(self) -> Arrays:
        """Compute all anew. Returns the results on the device, in the graph's memory."""
        self._recorded.launch()
        return self._recorded.latest

    @property
    def latest(self) -> Arrays:
        """What :meth:`launch` returned."""
        return self._recorded.latest


def arrays_of(output: SamplerOutput) -> Arrays:
    """What is set of ``output``, by name."""
    values = ((name, getattr(output, name)) for name in SamplerOutput.FIELDS)
    return {name: value for name, value in values if hasattr(value, "shape")}


def cut(arrays: Mapping[str, Any], requests: int, rows: int) -> Arrays:
    """What a step of so many requests and rows has of the results of a graph, which are of more.

    The arrays are new ones: by these a backend tells apart of which step it copies results.
    """
    ends = {"N": requests, "T": rows}
    return {name: value[: ends.get(_first_axis(name), len(value))] for name, value in arrays.items()}


def _first_axis(name: str) -> str:
    if not _FIRST_AXIS:
        from deepinfer_contracts import CONTRACTS

        for field, declared in CONTRACTS["SamplerOutput"].fields:
            _FIRST_AXIS[field] = declared.partition("[")[2].partition("]")[0].partition(",")[0].strip()
    return _FIRST_AXIS.get(name, "")


_FIRST_AXIS: dict[str, str] = {}
"""By field of ``SamplerOutput``: what its arrays have an entry for (N requests, T rows, K drafts)."""
