"""What becomes of a result: which entry it is compared with, how, and what an update writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from attrs import evolve, frozen

from deepinfer_core.errors import BaselineError, CommandUsageError
from deepinfer_verify.ppl.comparison import (
    TOLERANCE,
    SampleDifference,
    Verdict,
    comparable,
    exact_differences,
    largest_relative,
    near_differences,
    other_entry,
)
from deepinfer_verify.ppl.records import Entry


@frozen
class Outcome:
    """One workload, computed and compared."""

    found: Entry
    verdict: Verdict
    compared_with: str = ""
    """Key of the entry, where there was one."""
    differences: tuple[SampleDifference, ...] = ()
    largest_relative: float | None = None
    """Distance from another machine's entry."""
    note: str = ""
    """Why it was not compared, or not exactly."""
    written: str = ""
    """What an update did: ``added``, ``replaced``, ``unchanged``; empty without one."""

    def as_record(self) -> dict[str, Any]:
        """JSON-serialisable."""
        own = self.compared_with == self.found.key
        samples = [
            {"id": s.id, "ppl": s.ppl, "sum_logprob": s.sum_logprob, "tokens": len(s.logprobs)}
            for s in self.found.samples
        ]
        return {
            "workload": self.found.workload["name"],
            "key": self.found.key,
            **({"emulated": True} if self.found.platform.get("emulated") else {}),
            "verdict": str(self.verdict),
            "compared_with": self.compared_with or None,
            "tolerance": None if not self.compared_with else 0.0 if own else TOLERANCE,
            "largest_relative": self.largest_relative,
            "differences": [attrs.asdict(difference) for difference in self.differences],
            "note": self.note or None,
            "written": self.written or None,
            "perplexity": self.found.perplexity,
            "samples": samples,
        }


def compared(found: Entry, entries: Mapping[str, Entry], path: Path) -> Outcome:
    """With this machine's entry, else with another machine's where that can say anything.

    Raises BaselineError where this machine's entry is of other inputs or of another checkpoint.
    """
    if (own := entries.get(found.key)) is not None:
        if not comparable(own, found):
            raise _other_inputs(own, found, path)
        differences = tuple(exact_differences(own, found))
        return Outcome(found, Verdict.DIFFERENT if differences else Verdict.EQUAL, own.key, differences)
    no_entry = f"{path.name} has no entry {found.key}"
    other = other_entry(entries, found)
    if other is None:
        note = f"{no_entry}, nor another machine's for this model and backend"
        return Outcome(found, Verdict.NOT_COMPARED, note=note)
    if found.workload["arithmetic"] != "exact":
        note = f"{no_entry}; others say nothing, since released rounding turns the last bit of a sum into percents"
        return Outcome(found, Verdict.NOT_COMPARED, note=note)
    differences = tuple(near_differences(other, found))
    near = None if any(d.what in ("samples", "tokens") for d in differences) else largest_relative(other, found)
    verdict = Verdict.DIFFERENT if differences else Verdict.NEAR
    note = f"{no_entry}: compared within {TOLERANCE:g} with another machine's"
    return Outcome(found, verdict, other.key, differences, near, note)


def updated(found: Entry, entries: Mapping[str, Entry], path: Path, reason: str | None) -> Outcome:
    """What an update writes. Raises CommandUsageError where numbers change and nobody says why."""
    own = entries.get(found.key)
    if own is None:
        return Outcome(evolve(found, reason=reason or "first"), Verdict.NOT_COMPARED, written="added")
    if own.same_values(found):
        return Outcome(own, Verdict.EQUAL, own.key, written="unchanged")
    differences = tuple(exact_differences(own, found)) if comparable(own, found) else ()
    if not reason:
        raise CommandUsageError(
            f"the update would change {found.key} in {path}",
            reason=differences[0].text if differences else "; ".join(_changed(own, found)),
            remedy='say why with --reason "...", which is kept in the file',
            details={"key": found.key, "path": str(path)},
        )
    verdict = Verdict.DIFFERENT if differences else Verdict.NOT_COMPARED
    note = "" if differences else "; ".join(_changed(own, found))
    return Outcome(evolve(found, reason=reason), verdict, own.key, differences, note=note, written="replaced")


def _other_inputs(own: Entry, found: Entry, path: Path) -> BaselineError:
    changed = _changed(own, found)
    return BaselineError(
        f"entry {own.key} of {path} is of something else than what runs here",
        reason="; ".join(changed),
        remedy="give that checkpoint with --model, another file to --baseline, or make the entry again with --update",
        details={"key": own.key, "changed": changed},
    )


def _changed(own: Entry, found: Entry) -> list[str]:
    changed = [
        f"{key} is {found.workload.get(key)!r}, was {own.workload.get(key)!r}"
        for key in {**own.workload, **found.workload}
        if own.workload.get(key) != found.workload.get(key)
    ]
    if own.model != found.model:
        changed.append(f"the checkpoint is {found.model}, was {own.model}")
    return changed
