"""Whether a file of results was drawn as it says: uniformity of the draws, log-probabilities, what became of drafts."""

from __future__ import annotations

from deepinfer_core.audit.draws import Draws, collect
from deepinfer_core.audit.summaries import Acceptance, LogprobSummary, acceptance, summarise
from deepinfer_core.audit.uniformity import Uniformity, check_uniformity

__all__ = [
    "Acceptance",
    "Draws",
    "LogprobSummary",
    "Uniformity",
    "acceptance",
    "check_uniformity",
    "collect",
    "summarise",
]
