"""What was computed beside an entry of the file: bit by bit on a machine of the same key, nearly elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from enum import StrEnum

from attrs import frozen

from deepinfer_verify.ppl.records import Entry, SampleResult
from deepinfer_verify.ulps import ulps

TOLERANCE = 1e-6
"""Relative, of a sample's sum of log-probabilities and of its perplexity, between machines of different keys. Exact
arithmetic in another order of summation moves them by 1e-8 to 1e-7."""


class Verdict(StrEnum):
    """What came of one workload."""

    EQUAL = "equal"
    """Bit by bit, with the entry of this machine's own key."""
    NEAR = "near"
    """Within the tolerance, with the entry of another machine."""
    NOT_COMPARED = "not compared"
    """There is no entry that this result can be compared with."""
    DIFFERENT = "different"


@frozen
class SampleDifference:
    """Where one sample differs from the baseline."""

    sample: str
    what: str
    """``tokens``, ``log-probabilities``, ``sum``, ``perplexity``, ``drafts`` or ``samples``."""
    baseline: str
    found: str
    token: int | None = None
    """The first that differs, counted from 0 among the decoded ones."""
    ulps: int | None = None
    """Distance of the two values in steps of the FP32 format (of FP64 for sum and perplexity)."""
    count: int = 0
    """How many tokens of the sample differ."""
    relative: float | None = None

    @property
    def text(self) -> str:
        where = f"{self.sample}: "
        if self.token is not None:
            where += f"token {self.token}: log-probability "
            rest = f"; {self.count} token{' differs' if self.count == 1 else 's differ'} in all"
        else:
            where += f"{self.what} "
            rest = ""
        steps = "" if self.ulps is None else f", {self.ulps} ulp apart"
        share = "" if self.relative is None else f", relative {self.relative:.2g}"
        return f"{where}{self.found}, baseline {self.baseline}{steps}{share}{rest}"


def other_entry(entries: Mapping[str, Entry], mine: Entry) -> Entry | None:
    """The entry of another machine to compare with: same backend, workload and checkpoint; same torch first."""
    found = [e for key, e in entries.items() if key != mine.key and e.backend == mine.backend and comparable(e, mine)]
    torch = mine.platform["packages"].get("torch")

    def other_torch(entry: Entry) -> bool:
        packages = entry.platform.get("packages")
        return not isinstance(packages, dict) or packages.get("torch") != torch

    return min(found, key=lambda entry: (other_torch(entry), entry.key), default=None)


def comparable(a: Entry, b: Entry) -> bool:
    """Whether both are of the same inputs and the same checkpoint."""
    return a.workload == b.workload and a.model == b.model


def exact_differences(baseline: Entry, found: Entry) -> Iterator[SampleDifference]:
    """The first difference of each sample that has one: any bit, and any draft that was accepted or not."""
    for old, new in _pairs(baseline, found):
        if isinstance(old, SampleDifference):
            yield old
        elif difference := _exact(old, new):
            yield difference


def near_differences(baseline: Entry, found: Entry) -> Iterator[SampleDifference]:
    """The same for sums and perplexities that are further apart than ``TOLERANCE``."""
    for old, new in _pairs(baseline, found):
        if isinstance(old, SampleDifference):
            yield old
            continue
        for what, a, b in (("sum", old.sum_logprob, new.sum_logprob), ("perplexity", old.ppl, new.ppl)):
            relative = _relative(a, b)
            if not relative <= TOLERANCE:
                yield SampleDifference(old.id, what, _both(a), _both(b), relative=relative)
                break


def largest_relative(baseline: Entry, found: Entry) -> float:
    """Of all samples, sum and perplexity."""
    pairs = zip(baseline.samples, found.samples, strict=True)
    return max(max(_relative(a.sum_logprob, b.sum_logprob), _relative(a.ppl, b.ppl)) for a, b in pairs)


def _pairs(baseline: Entry, found: Entry) -> Iterator[tuple[SampleResult | SampleDifference, SampleResult]]:
    if [s.id for s in baseline.samples] != [s.id for s in found.samples]:
        old_ids, new_ids = (", ".join(sample.id for sample in entry.samples) for entry in (baseline, found))
        yield SampleDifference(found.samples[0].id, "samples", old_ids, new_ids), found.samples[0]
        return
    for old, new in zip(baseline.samples, found.samples, strict=True):
        if old.tokens_sha256 != new.tokens_sha256:
            yield SampleDifference(old.id, "tokens", old.tokens_sha256, new.tokens_sha256), new
        else:
            yield old, new


def _exact(old: SampleResult, new: SampleResult) -> SampleDifference | None:
    if len(old.logprobs) != len(new.logprobs):
        return SampleDifference(old.id, "log-probabilities", str(len(old.logprobs)), str(len(new.logprobs)))
    differ = [at for at, pair in enumerate(zip(old.logprobs, new.logprobs, strict=True)) if pair[0] != pair[1]]
    if differ:
        a, b = old.logprobs[differ[0]], new.logprobs[differ[0]]
        return SampleDifference(
            old.id, "log-probabilities", _both(a), _both(b), differ[0], ulps(a, b, "f"), len(differ), _relative(a, b)
        )
    for what, a, b in (("sum", old.sum_logprob, new.sum_logprob), ("perplexity", old.ppl, new.ppl)):
        if a != b:
            return SampleDifference(old.id, what, _both(a), _both(b), ulps=ulps(a, b, "d"), relative=_relative(a, b))
    if (old.verified, old.accepted) != (new.verified, new.accepted):
        return SampleDifference(old.id, "drafts", _drafts(old), _drafts(new))
    return None


def _relative(a: float, b: float) -> float:
    largest = max(abs(a), abs(b))
    return abs(a - b) / largest if largest else (0.0 if a == b else math.inf)


def _both(value: float) -> str:
    return f"{value.hex()} ({value:.9g})"


def _drafts(sample: SampleResult) -> str:
    return f"{list(sample.accepted)} of {list(sample.verified)} accepted"
