"""What was compared, and what differs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs
from attrs import define, field, frozen

MAX_KEPT = 200
"""Findings that are kept; the others are counted."""


@frozen
class Finding:
    """One difference."""

    case: str
    where: str
    """Row and what of it, or the sample and its token."""
    expected: str
    found: str

    @property
    def text(self) -> str:
        return f"{self.case}: {self.where}: {self.found}, expected {self.expected}"


@define
class Findings:
    """Of one comparison; ``compared`` counts what was looked at, by kind."""

    cases: int = 0
    compared: Counter[str] = field(factory=Counter)
    different: Counter[str] = field(factory=Counter)
    kept: list[Finding] = field(factory=list)

    @property
    def count(self) -> int:
        return self.different.total()

    def check(self, kind: str, case: str, where: str, expected: object, found: object) -> bool:
        """Compare two values that print; whether they are equal."""
        self.compared[kind] += 1
        if expected == found:
            return True
        self.differs(kind, case, where, expected, found)
        return False

    def differs(self, kind: str, case: str, where: str, expected: object, found: object) -> None:
        """Note a difference that the caller found."""
        self.different[kind] += 1
        if len(self.kept) < MAX_KEPT:
            self.kept.append(Finding(case, where, str(expected), str(found)))

    def add(self, other: Findings) -> None:
        self.cases += other.cases
        self.compared += other.compared
        self.different += other.different
        self.kept = [*self.kept, *other.kept][:MAX_KEPT]

    def as_record(self) -> dict[str, Any]:
        """JSON-serialisable."""
        return {
            "cases": self.cases,
            "compared": dict(self.compared),
            "differences": self.count,
            "different": dict(self.different),
            "first": [attrs.asdict(finding) for finding in self.kept],
        }
