"""Step 5: ask backends what they find on this host, each in a child process with a time limit.

Children, because driver libraries may crash or exit, and a device that was initialised in the parent breaks ``fork``
(``spec/plugins.md`` 9).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import frozen

from deepinfer_core.plugins.child import ChildResult, run_children
from deepinfer_core.plugins.lock import LockedPlugin, as_data
from deepinfer_core.plugins.record import PluginRecord
from deepinfer_core.types import ProbeReport

LIMIT_S = 5.0
_TARGET = "deepinfer_core.plugins.probe_child:probe_locked"


@frozen
class ProbeOutcome:
    """What a probe gave: a report, or why there is none."""

    record: PluginRecord
    report: ProbeReport | None = None
    failure: str = ""
    """``probe crashed: signal 11``; empty with a report."""
    crashed: bool = False
    """The probe itself went wrong, so an accelerator may well be present."""
    plugin_failed: bool = False
    """The plugin could not be imported or registered; says nothing about the host."""

    @property
    def device_present(self) -> bool:
        return self.crashed or (self.report is not None and self.report.present)


def probe_all(records: Sequence[PluginRecord], *, limit_s: float = LIMIT_S, trace: bool = False) -> list[ProbeOutcome]:
    """Probe every record, all at the same time. The answers are in the order of ``records``.

    ``trace``: write a line for each hook call.
    """
    calls = [(_TARGET, (r.entry.group, as_data(LockedPlugin.of(r)), trace)) for r in records]
    results = run_children(calls, limit_s, at_once=max(len(calls), 1))
    return [_outcome(record, result) for record, result in zip(records, results, strict=True)]


def _outcome(record: PluginRecord, result: ChildResult) -> ProbeOutcome:
    if result.failure:
        return ProbeOutcome(record, failure=result.told("probe"), crashed=True)
    try:
        return _from_answer(record, result.answer)
    except (ValueError, TypeError, KeyError, AttributeError):
        text = ChildResult(None, "wrote something that is no result", result.stdout, result.stderr).told("probe")
        return ProbeOutcome(record, failure=text, crashed=True)


def _from_answer(record: PluginRecord, data: dict[str, Any]) -> ProbeOutcome:
    if "report" in data:
        return ProbeOutcome(record, report=_report(data["report"]))
    phase, error = str(data["phase"]), str(data["error"])
    if phase == "lock":
        text = f"the process of the probe found another plugin: {error}"
        return ProbeOutcome(record, failure=text, plugin_failed=True)
    if phase == "absent":
        return ProbeOutcome(record, failure=error)
    if phase == "return":
        text = f"probe returned {error}, expected a ProbeReport"
        return ProbeOutcome(record, failure=text, crashed=True)
    text = f"{error} (raised at {data['blame']})"
    if phase == "probe":
        return ProbeOutcome(record, failure=f"probe failed: {text}", crashed=True)
    return ProbeOutcome(record, failure=f"plugin failed in {phase}: {text}", plugin_failed=True)


def _report(raw: dict[str, Any]) -> ProbeReport:
    """The report from JSON, every type checked: it came from another process."""
    texts = {key: _tuple_of_text(raw[key]) for key in ("devices", "reasons")}
    for key, kind in (("present", bool), ("usable", bool), ("arch", str), ("driver", str), ("remedy", str)):
        if not isinstance(raw[key], kind):
            raise TypeError(key)
    if not isinstance(raw["score"], int):
        raise TypeError("score")
    return ProbeReport(
        present=raw["present"],
        usable=raw["usable"],
        devices=texts["devices"],
        arch=raw["arch"],
        driver=raw["driver"],
        score=raw["score"],
        reasons=texts["reasons"],
        remedy=raw["remedy"],
    )


def _tuple_of_text(raw: object) -> tuple[str, ...]:
    if not isinstance(raw, list) or not all(isinstance(item, str) for item in raw):
        raise TypeError("a list of texts")
    return tuple(raw)
