"""What decode steps really take, told to the scheduler, which chooses how many drafts to verify (``engine.md`` 7.2)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from deepinfer_core.pipeline.record import StepRecord


class CurveFeedback:
    """Corrects the curve of a core by its steps.

    :param sizes: Of the curve, ascending.
    """

    def __init__(self, core: Any, sizes: Sequence[int]) -> None:
        self._core = core
        self._sizes = sizes

    def observe(self, record: StepRecord) -> None:
        """``record``: a decode step that is committed.

        Only on a backend that computes within its calls: elsewhere the host's time of a call says nothing.
        """
        if record.is_prefill or record.event is not None or not record.forward_ns:
            return
        size = self._sizes[min(bisect_left(self._sizes, record.num_tokens), len(self._sizes) - 1)]
        self._core.observe_verify(size, record.num_reqs, record.forward_ns * 1e-6, record.sample_ns * 1e-6)
