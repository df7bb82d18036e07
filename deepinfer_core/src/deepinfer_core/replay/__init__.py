"""Results that can be repeated: what a run writes beside its answers, and the comparison of a second run with it."""

from __future__ import annotations

from deepinfer_core.replay.comparison import Difference, compare
from deepinfer_core.replay.recorded import RecordedAnswer, RecordedRequest, Results, read_results, refuse_foreign_ids
from deepinfer_core.replay.run import describe_run, differences_of_runs, request_fields

__all__ = [
    "Difference",
    "RecordedAnswer",
    "RecordedRequest",
    "Results",
    "compare",
    "describe_run",
    "differences_of_runs",
    "read_results",
    "refuse_foreign_ids",
    "request_fields",
]
