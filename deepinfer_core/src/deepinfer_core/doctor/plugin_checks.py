"""Each plugin: what is known without importing it, then what children say that import it, probe it and ask it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
from attrs import define

from deepinfer_core.doctor.child_tasks import CHECKS_HOOK
from deepinfer_core.doctor.findings import Finding
from deepinfer_core.doctor.installation import requirement_findings
from deepinfer_core.doctor.origins import module_origin
from deepinfer_core.plugins.child import ChildResult, run_children
from deepinfer_core.plugins.lock import LockedPlugin, as_data
from deepinfer_core.plugins.probe import ProbeOutcome, probe_all
from deepinfer_core.plugins.record import PluginRecord
from deepinfer_core.plugins.selection import arch_problem, unusable_reason, unusable_remedy

_TASKS = "deepinfer_core.doctor.child_tasks"


@define
class Limits:
    """Seconds that a child may take."""

    load: float = 20.0
    probe: float = 10.0
    checks: float = 60.0
    model: float = 180.0


@define
class _Loaded:
    """What the child said that imported a plugin; ``error`` when it could not."""

    hooks: Sequence[str] = ()
    file: str | None = None
    error: dict[str, Any] | None = None
    stdout: str = ""
    heavy: Sequence[str] = ()


def plugin_findings(
    records: Sequence[PluginRecord], needed: frozenset[str], limits: Limits, *, trace: bool = False
) -> list[Finding]:
    """The findings of all ``records``, in their order. A fault of one leaves the others as they are.

    :param needed: Keys of plugins whose problems count.
    :param trace: Write a line for each hook call.
    """
    unmet = {id(r): r.unmet for r in records}
    # One that is named is asked all the same: its own checks say more than that a file is not there.
    to_load = [r for r in records if r.usable and (not unmet[id(r)] or r.key in needed)]
    loaded = dict(zip(map(id, to_load), _load_all(to_load, limits.load, trace), strict=True))
    probed = [
        r for r in to_load if loaded[id(r)].error is None and "deepinfer_backend_probe" in loaded[id(r)].hooks
    ]  # fmt: skip
    outcomes = (
        {id(outcome.record): outcome for outcome in probe_all(probed, limit_s=limits.probe, trace=trace)}
        if probed
        else {}
    )
    asked = [r for r in to_load if loaded[id(r)].error is None and CHECKS_HOOK in loaded[id(r)].hooks]
    checks = dict(zip(map(id, asked), _run("plugin_checks", asked, limits.checks, trace), strict=True))
    findings: list[Finding] = []
    seen: set[str] = set()
    served = {record.key for record in records if record.usable}
    for record in records:
        # One that cannot have a name (it takes that of another, or gives way) is not needed where another one has it.
        is_needed = record.key in needed and (record.usable or record.key not in served)
        findings.append(_static(record, is_needed, unmet[id(record)]))
        result = loaded.get(id(record))
        if result is not None:
            findings += _import(record, result, is_needed)
            if record.kind == "backend" and result.error is None:
                findings.append(_device(record, outcomes.get(id(record)), is_needed))
        if id(record) in checks:
            findings += _own_checks(record, checks[id(record)], is_needed)
        if record.usable and record.distribution not in seen:
            seen.add(record.distribution)
            findings += requirement_findings(record.key, record.distribution, needed=is_needed)
    return findings


def _run(task: str, records: Sequence[PluginRecord], limit_s: float, trace: bool) -> list[ChildResult]:
    calls = [(f"{_TASKS}:{task}", (r.entry.group, as_data(LockedPlugin.of(r)), trace)) for r in records]
    results = run_children(calls, limit_s, at_once=max(2, os.cpu_count() or 1))
    no_result = "wrote something that is no result"  # a plugin found the pipe
    return [
        result if result.failure or isinstance(result.answer, dict) else attrs.evolve(result, failure=no_result)
        for result in results
    ]


def _load_all(records: Sequence[PluginRecord], limit_s: float, trace: bool) -> list[_Loaded]:
    return [
        _loaded(record, result)
        for record, result in zip(records, _run("load_plugin", records, limit_s, trace), strict=True)
    ]


def _loaded(record: PluginRecord, result: ChildResult) -> _Loaded:
    if result.failure:
        return _Loaded(error=_child_error(record, result, "the import"))
    answer = result.answer
    return _Loaded(
        answer.get("hooks", ()), answer.get("file"), answer.get("error"), result.stdout, answer.get("heavy", ())
    )


def _child_error(record: PluginRecord, result: ChildResult, subject: str) -> dict[str, Any]:
    return {
        "code": "E_PLUGIN",
        "message": f"{record.title}: {result.told(subject)}",
        "reason": f"it ran {record.entry.value} in a process of its own",
        "remedy": record.remedy_for(
            f"reinstall or update {record.distribution}, or leave it out with --no-plugin {record.name}"
        ),
    }


def _static(record: PluginRecord, needed: bool, unmet: str) -> Finding:
    data = {
        "distribution": record.distribution,
        "version": record.version,
        "state": record.state,
        "entry": record.entry.value,
        "folder": str(record.folder) if record.folder else None,
        "editable": record.editable,
        "contracts": record.contracts,
        "installed": True,
    }
    title = f"{record.distribution} {record.version}" + (" (editable)" if record.editable else "")
    if record.error is not None:
        chosen = record.state == "shadowed"  # by a setting, for the sake of another one
        status = "problem" if record.faulty or (needed and not chosen) else "note"
        return Finding.of_error(record.key, "plugin", record.error, needed=needed, status=status, data=data)
    if unmet:
        return Finding(
            record.key,
            "plugin",
            "problem" if needed else "note",
            f"{title} cannot be used here: {unmet}",
            reason=f"requires in {record.manifest.path.name} of {record.distribution}" if record.manifest else "",
            needed=needed,
            data={**data, "available": False, "reasons": [unmet]},
        )
    lines = [f"contract {text}" for text in record.contracts]
    summary = f"{title}, {record.table.summary}"
    return Finding(record.key, "plugin", "ok", summary, needed=needed, data=data, lines=lines)


def _import(record: PluginRecord, loaded: _Loaded, needed: bool) -> Iterator[Finding]:
    if loaded.error is not None:
        yield Finding.of_record(record.key, "import", loaded.error, needed=needed)
        return
    names = [hook.removeprefix("deepinfer_") for hook in loaded.hooks]
    yield Finding(record.key, "hooks", "ok", ", ".join(names), needed=needed, data={"hooks": list(loaded.hooks)})
    if loaded.stdout:
        yield Finding(
            record.key,
            "output",
            "note",
            f"it writes to standard output when it is imported: {loaded.stdout}",
            reason="standard output of a command is for its results alone",
            remedy=f"ask the authors of {record.distribution} to leave that out",
            needed=needed,
            data={"stdout": loaded.stdout},
        )
    if loaded.heavy:
        yield Finding(
            record.key,
            "imports",
            "note",
            f"it imports {', '.join(loaded.heavy)} when it is imported",
            reason="every command that loads it waits for that, also those that compute nothing",
            remedy=f"ask the authors of {record.distribution} to import it inside the hooks that need it",
            needed=needed,
            data={"imports": list(loaded.heavy)},
        )
    yield module_origin(record.key, record.distribution, record.entry.dist, loaded.file, needed=needed)


def _device(record: PluginRecord, outcome: ProbeOutcome | None, needed: bool) -> Finding:
    """The device of a backend, as its probe sees it."""
    if outcome is None:
        text = "it has no deepinfer_backend_probe, so only a run can tell"
        data: dict[str, Any] = {"available": True, "arch": "", "devices": [], "driver": "", "reasons": []}
        return Finding(record.key, "device", "ok", text, needed=needed, data=data)
    report = outcome.report
    refusal, wrong = unusable_reason(outcome), arch_problem(record, report)
    reasons = [reason for reason in (refusal, "" if refusal else wrong) if reason]
    data = {
        "available": not reasons,
        "present": outcome.device_present,
        "arch": report.arch if report else "",
        "devices": list(report.devices) if report else [],
        "driver": report.driver if report else "",
        "score": report.score if report else 0,
        "reasons": reasons,
    }
    if report is not None and not reasons:
        detail = ", ".join(part for part in (*report.devices, report.driver) if part)
        return Finding(record.key, "device", "ok", detail or "usable", needed=needed, data=data)
    if report is not None and not report.present and not needed:
        return Finding(record.key, "device", "note", refusal, remedy=report.remedy, needed=False, data=data)
    return Finding(
        record.key,
        "device",
        "problem",
        "no usable device" if report else f"the {outcome.failure}" if outcome.crashed else outcome.failure,
        code="E_ARCH" if report and not refusal else "E_BACKEND_UNAVAILABLE",
        reason="; ".join(reasons) if report else "",
        remedy=unusable_remedy(outcome),
        needed=needed,
        data=data,
    )


def _own_checks(record: PluginRecord, result: ChildResult, needed: bool) -> Iterator[Finding]:
    if result.failure:
        error = _child_error(record, result, "its doctor checks")
        yield Finding.of_record(record.key, "checks", error, needed=needed)
        return
    if "error" in result.answer:
        yield Finding.of_record(record.key, "checks", result.answer["error"], needed=needed)
        return
    for check in result.answer["checks"]:
        yield Finding(
            record.key,
            str(check["name"]),
            check["status"],
            str(check["detail"]),
            reason=str(check["reason"]),
            remedy=str(check["remedy"]),
            needed=needed,
        )
