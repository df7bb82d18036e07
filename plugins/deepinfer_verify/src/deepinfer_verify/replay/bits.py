"""Two traces, element by element and bit by bit."""

from __future__ import annotations

from deepinfer_verify.replay.findings import Findings
from deepinfer_verify.replay.traced import Trace
from deepinfer_verify.ulps import ulps


def same(findings: Findings, case: str, expected: Trace, found: Trace) -> None:
    """Log-probabilities, drafts with their confidences, and what became of them."""
    findings.cases += 1
    for at, (a, b) in enumerate(zip(expected.logprobs, found.logprobs, strict=True)):
        _bits(findings, "log-probabilities", case, f"forced token {at}", a, b)
    findings.check("draft steps", case, "positions of decode steps", sorted(expected.drafts), sorted(found.drafts))
    for at in sorted({*expected.drafts} & {*found.drafts}):
        for place, ((id_a, a), (id_b, b)) in enumerate(zip(expected.drafts[at], found.drafts[at], strict=True)):
            findings.check("draft tokens", case, f"draft {place} behind position {at}", id_a, id_b)
            _bits(findings, "confidences", case, f"draft {place} behind position {at}", a, b)
    findings.check("accepted drafts", case, "by place", expected.accepted, found.accepted)


def _bits(findings: Findings, kind: str, case: str, where: str, a: float, b: float) -> None:
    findings.compared[kind] += 1
    if a.hex() != b.hex():
        steps = ulps(a, b, "f")
        findings.differs(kind, case, f"{where}, {kind}", a.hex(), f"{b.hex()} ({b:.9g}, {steps} ulp apart)")
