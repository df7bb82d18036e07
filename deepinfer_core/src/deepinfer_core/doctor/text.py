"""The report for people: one line for each check, what to do below a problem, and a last line with the sum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from deepinfer_core.doctor.findings import Finding, Report

_MARKS = {"ok": "ok", "note": "note", "problem": "PROBLEM"}
_MARK_WIDTH = max(map(len, _MARKS.values()))


def as_text(report: Report) -> str:
    """All findings, grouped by area in their order."""
    width = max((len(finding.check) for finding in report.findings), default=0)
    lines: list[str] = []
    area = None
    for finding in sorted(report.findings, key=_order(report)):
        if finding.area != area:
            lines += [""] if lines else []
            area = finding.area
            lines.append(area.replace(":", " "))
        lines += _lines(finding, width)
    return "\n".join([*lines, "", summary(report)])


def _order(report: Report) -> Any:
    places: dict[str, int] = {}
    for finding in report.findings:
        places.setdefault(finding.area, len(places))
    return lambda finding: places[finding.area]


def _lines(finding: Finding, width: int) -> list[str]:
    start = f"  {_MARKS[finding.status].ljust(_MARK_WIDTH)}  {finding.check.ljust(width)}  "
    margin = " " * len(start)
    code = f"{finding.code}: " if finding.code else ""
    first, *more = (code + finding.detail).split("\n")
    lines = [start + first, *(margin + line.strip() for line in more)]
    lines += [margin + line for line in finding.lines]
    for label, text in (("reason", finding.reason), ("remedy", finding.remedy)):
        if text and finding.status != "ok":
            lines.append(f"{margin}{label}: " + text.replace("\n", "\n" + margin))
    return [line.rstrip() for line in lines]


def summary(report: Report) -> str:
    """``2 problems, 1 of them in what was named or what every run needs``."""
    problems, needed = report.problems(), report.problems(needed=True)
    notes = sum(finding.status == "note" for finding in report.findings)
    text = f"{_count(len(report.findings), 'check')}, {_count(notes, 'note')}, {_count(len(problems), 'problem')}"
    if not problems:
        return f"{text}."
    if not needed:
        return f"{text}: none in what was named, nor in what every run needs."
    return f"{text}, {len(needed)} of them in what was named or what every run needs."


def settings_text(settings: Iterable[Mapping[str, Any]]) -> str:
    """One setting a line: key, value, origin."""
    rows = [("SETTING", "VALUE", "FROM")]
    rows += [(item["key"], _value(item["value"]), item["origin"]) for item in settings]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(f"{key.ljust(widths[0])}  {value.ljust(widths[1])}  {origin}" for key, value, origin in rows)


def _value(value: object) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return ",".join(f"{key}={item}" for key, item in value.items()) or "none"
    return str(value)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
