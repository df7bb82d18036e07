"""One line of the report, and the report as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self

import attrs
from attrs import field, frozen

from deepinfer_core.errors import EXIT_OK, EXIT_SOME_FAILED, DeepInferError

Status = Literal["ok", "note", "problem"]
SCHEMA = 1
"""Version of the JSON report. It grows when a field is renamed or removed, not when one is added."""


@frozen
class Finding:
    """What one check found. ``area`` is ``core``, ``settings``, ``model``, or the key of a plugin."""

    area: str
    check: str
    status: Status
    detail: str
    code: str = ""
    reason: str = ""
    remedy: str = ""
    needed: bool = True
    """A problem here makes the exit status 1: it was named, or any run needs it."""
    data: Mapping[str, Any] = field(factory=dict)
    """The same for programs, JSON-serialisable; keys depend on the check."""
    lines: Sequence[str] = ()
    """Further lines of the text."""

    @classmethod
    def of_error(cls, area: str, check: str, error: DeepInferError, *, needed: bool = True, **more: Any) -> Self:
        return cls.of_record(area, check, error.as_record(), needed=needed, **more)

    @classmethod
    def of_record(cls, area: str, check: str, record: Mapping[str, Any], *, needed: bool = True, **more: Any) -> Self:
        """A problem from ``DeepInferError.as_record``, perhaps of another process."""
        return cls(
            area=area,
            check=check,
            status=more.pop("status", "problem"),
            detail=str(record["message"]),
            code=str(record["code"]),
            reason=str(record["reason"]),
            remedy=str(record["remedy"]),
            needed=needed,
            data=more.pop("data", record.get("details", {})),
        )

    def as_data(self) -> dict[str, Any]:
        record = attrs.asdict(self)
        del record["lines"]
        return record


@frozen
class Report:
    """All findings, in the order to print."""

    findings: tuple[Finding, ...]
    versions: Mapping[str, str]

    def problems(self, *, needed: bool | None = None) -> list[Finding]:
        return [f for f in self.findings if f.status == "problem" and needed in (None, f.needed)]

    @property
    def exit_status(self) -> int:
        return EXIT_SOME_FAILED if self.problems(needed=True) else EXIT_OK

    def as_data(self, settings: Iterable[Mapping[str, Any]] | None = None) -> dict[str, Any]:
        """The report as JSON-serialisable data (``docs/how-to/diagnose-an-installation.md``)."""
        data: dict[str, Any] = {
            "schema": SCHEMA,
            "exit_status": self.exit_status,
            "problems": len(self.problems()),
            "needed_problems": len(self.problems(needed=True)),
            "versions": dict(self.versions),
            "checks": [finding.as_data() for finding in self.findings],
        }
        if settings is not None:
            data["settings"] = list(settings)
        return data
