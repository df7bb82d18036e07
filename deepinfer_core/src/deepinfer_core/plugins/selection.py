"""Step 6: choose the backend (``spec/plugins.md`` 9).

::

    explicit name: load only that plugin, skip steps 1 and 5; it works or the command fails
    auto: 1 static  2 probe  3 arch  4 model  5 rank  6 none left: cpu, only if no accelerator is present

The result and its reason are one line that the command prints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from attrs import field, frozen

from deepinfer_core.errors import (
    BackendError,
    BackendNotInstalled,
    BackendUnavailable,
    PluginError,
    UnsupportedArch,
    UnsupportedFeature,
    UnsupportedFormat,
    UnsupportedOp,
)
from deepinfer_core.plugins.emulation import BANNER, emulated_record
from deepinfer_core.plugins.manager import PluginManager
from deepinfer_core.plugins.probe import ProbeOutcome, probe_all
from deepinfer_core.plugins.record import PluginRecord
from deepinfer_core.plugins.requirements import Missing, features_met, missing_claims
from deepinfer_core.types import ProbeReport, Requirements

CPU = "cpu"
Prober = Callable[[Sequence[PluginRecord]], list[ProbeOutcome]]


@frozen
class Selection:
    """The chosen backend and why."""

    record: PluginRecord
    line: str
    """``backend: cpu (auto: no accelerator present)``"""
    report: ProbeReport | None = None
    refused: tuple[tuple[str, str], ...] = field(default=())
    """Backends that were not chosen: (name, reason)."""


def select_backend(manager: PluginManager, requirements: Requirements, *, prober: Prober | None = None) -> Selection:
    """Choose by ``config.backend``. The chosen plugin is loaded, and not created yet.

    :param requirements: What the model needs.
    :param prober: Runs the probes; None: each in a child process. Tests give a shorter limit.
    :raises BackendError: exit status 3; names every backend that was considered, with its reason.
    """
    prober = prober or partial(probe_all, trace=manager.config.trace_hooks)
    name = manager.config.backend
    if manager.config.emulate:
        record = emulated_record(manager, name)
        _check_claims(record, requirements, next(iter(record.table.arch), ""))
        return Selection(record, f"backend: {name} ({_asked_by(manager.config.origin('backend'))}; {BANNER})")
    if name == "auto":
        return _automatic(manager, requirements, prober)
    return _explicit(manager, name, requirements, prober)


def _explicit(manager: PluginManager, name: str, requirements: Requirements, prober: Prober) -> Selection:
    record = manager.require("backend", name)
    line = f"backend: {name} ({_asked_by(manager.config.origin('backend'))})"
    if record.name == CPU:
        return Selection(record, line)
    if manager.hook(record, "deepinfer_backend_probe") is None:
        _check_claims(record, requirements)
        return Selection(record, line)
    [outcome] = prober([record])
    refusal = unusable_reason(outcome)
    if refusal:
        raise BackendUnavailable(
            f"{record.title} was requested but cannot be used here",
            reason=refusal,
            remedy=unusable_remedy(outcome),
            details={"backend": name, "reason": refusal},
        )
    report = outcome.report
    wrong_arch = arch_problem(record, report)
    if wrong_arch:
        raise UnsupportedArch(
            f"backend {name!r} has no kernels for this device",
            reason=wrong_arch,
            remedy=f"use a device of {', '.join(record.table.arch)}, or choose --backend cpu",
            details={"backend": name, "supported": list(record.table.arch)},
        )
    _check_claims(record, requirements, _arch(report))
    return Selection(record, line, report)


def _automatic(manager: PluginManager, requirements: Requirements, prober: Prober) -> Selection:
    candidates = [record for record in manager.registry.of_kind("backend") if record.name != CPU]
    refused: list[tuple[str, str]] = []
    to_probe: list[PluginRecord] = []
    for record in candidates:
        unmet = record.unmet
        if unmet:
            refused.append((record.name, unmet))
        else:
            to_probe.append(record)
    outcomes = prober(to_probe) if to_probe else []
    usable: list[tuple[PluginRecord, ProbeReport]] = []
    remedies: list[str] = []
    for outcome in outcomes:
        record, report = outcome.record, outcome.report
        if outcome.plugin_failed:
            manager.fail(record, "probe", PluginError(f"{record.title}: {outcome.failure}"))
        elif outcome.crashed and manager.config.strict_plugins:
            raise PluginError(f"{record.title}: {outcome.failure}", reason="strict_plugins is on")
        reason = unusable_reason(outcome) or arch_problem(record, report)
        reason = reason or _lacks(record, requirements, _arch(report))
        if not reason and _host_only(record):
            reason = f"runs on the processor, where auto takes cpu; choose it with --backend {record.name}"
        if reason or report is None:
            refused.append((record.name, reason))
            remedies += [report.remedy] if report and report.remedy else []
        else:
            usable.append((record, report))
    preferred = requirements.features_preferred
    usable.sort(key=lambda item: (-_met(item[0], item[1], preferred), -item[1].score, item[0].name))
    for record, report in usable:
        if manager.load(record):
            met = _met(record, report, preferred)
            why = f"auto: {len(usable)} usable of {len(candidates)}"
            why += f"; met {met} preferred feature{'' if met == 1 else 's'}" if preferred else ""
            why += f"; highest of score {report.score}, then name" if not preferred and len(usable) > 1 else ""
            return Selection(record, f"backend: {record.name} ({why})", report, tuple(refused))
        refused.append((record.name, record.reason))
    seen = [outcome for outcome in outcomes if outcome.device_present and not _host_only(outcome.record)]
    if seen:
        raise _none_usable(manager, seen, refused, remedies)
    return _fall_to_cpu(manager, refused, outcomes)


def _fall_to_cpu(manager: PluginManager, refused: list[tuple[str, str]], outcomes: Sequence[ProbeOutcome]) -> Selection:
    why = "auto: no accelerator present"
    broken = sorted(
        {record.name for record in manager.registry.of_kind("backend", usable=False) if _is_broken(record)}
        | {outcome.record.name for outcome in outcomes if outcome.plugin_failed or outcome.crashed}
    )
    if broken:
        why += f"; {len(broken)} unusable: {', '.join(broken)}"
    if manager.registry.find("backend", CPU) is None:
        raise BackendNotInstalled(
            "no backend can be used here, and the cpu backend is not installed",
            reason=_listed(refused) or "no backend is installed",
            remedy="pip install deepinfer-cpu",
            details={"refused": [list(item) for item in refused]},
        )
    return Selection(manager.require("backend", CPU), f"backend: cpu ({why})", None, tuple(refused))


def _is_broken(record: PluginRecord) -> bool:
    return record.name != CPU and record.state in ("invalid", "incompatible", "conflict", "failed")


def _host_only(record: PluginRecord) -> bool:
    """Whether a backend runs on the processor alone: whatever its probe does, it says nothing of an accelerator."""
    return set(record.table.arch) == {CPU}


def _none_usable(
    manager: PluginManager, seen: Sequence[ProbeOutcome], refused: list[tuple[str, str]], remedies: list[str]
) -> BackendError:
    """The refusal: of a device that was found, or of one that may be there because a probe went wrong."""
    host = "run on the processor with --backend cpu"
    if manager.registry.find("backend", CPU) is None:
        host = "pip install deepinfer-cpu, and run on the processor with --backend cpu"
    details: dict[str, object] = {"refused": [list(item) for item in refused]}
    if any(outcome.report is not None for outcome in seen):
        return BackendUnavailable(
            "an accelerator is present, and no backend can use it for this model",
            reason=_listed(refused),
            remedy="; or ".join([*dict.fromkeys(remedies), host]),
            details=details,
        )
    names = [outcome.record.name for outcome in seen]
    return BackendUnavailable(
        f"the probe{'s' if len(names) > 1 else ''} of {' and '.join(names)} failed, so it is not known whether an "
        "accelerator is present",
        reason=_listed(refused),
        remedy=f"{host}; or leave {' and '.join(names)} out with "
        + " ".join(f"--no-plugin {outcome.record.name}" for outcome in seen),
        details={**details, "probe_failed": names},
    )


def _listed(refused: Sequence[tuple[str, str]]) -> str:
    """One line for each backend, aligned below ``reason:``."""
    return "\n          ".join(f"{name}: {reason}" for name, reason in refused)


def unusable_reason(outcome: ProbeOutcome) -> str:
    """Why a probe says that a backend cannot be used here; empty when it can."""
    report = outcome.report
    if report is None:
        return outcome.failure
    if report.present and report.usable:
        return ""
    return "; ".join(report.reasons) or ("device present but not usable" if report.present else "no device found")


def unusable_remedy(outcome: ProbeOutcome) -> str:
    """What to do about :func:`unusable_reason`: the report's own words, where there are any."""
    record, report = outcome.record, outcome.report
    if report is None:
        return f"reinstall or update {record.distribution}, or choose --backend cpu"
    return report.remedy or f"use a machine with a device of backend {record.name}, or choose --backend cpu"


def arch_problem(record: PluginRecord, report: ProbeReport | None) -> str:
    """That the compiled kernels are for other devices than those found; empty when they fit."""
    supported = record.table.arch
    if report is None or not supported:
        return ""
    seen = {*report.devices, report.arch} - {""}
    if seen & set(supported):
        return ""
    return f"found {', '.join(sorted(seen)) or 'no known architecture'}; kernels exist for {', '.join(supported)}"


def _arch(report: ProbeReport | None) -> str:
    return report.arch if report is not None else ""


def _met(record: PluginRecord, report: ProbeReport, preferred: frozenset[str]) -> int:
    return features_met(record.table, preferred, report.arch)


def _lacks(record: PluginRecord, requirements: Requirements, arch: str) -> str:
    missing = missing_claims(record.table, requirements, arch)
    return _unclaimed(missing) if missing else ""


def _unclaimed(missing: Missing) -> str:
    return f"its manifest does not claim {', '.join(missing.claims())}, which the model needs"


def _check_claims(record: PluginRecord, requirements: Requirements, arch: str = "") -> None:
    missing = missing_claims(record.table, requirements, arch)
    if missing:
        raise _kind_of(missing)(
            f"backend {record.name!r} cannot run this model as configured",
            reason=_unclaimed(missing),
            remedy=f"choose --backend cpu; or, if {record.name} has these, add them to its claims in deepinfer.toml "
            f"of {record.distribution}",
            details={"backend": record.name, "missing": missing.claims()},
        )


def _kind_of(missing: Missing) -> type[BackendError]:
    return UnsupportedOp if missing.ops else UnsupportedFormat if missing.formats else UnsupportedFeature


def refuse_missing(backend: str, arch: str, missing: Missing) -> BackendError:
    """One error for everything that the backend lacks."""
    return _kind_of(missing)(
        f"backend {backend!r}{f' ({arch})' if arch else ''} cannot run this model as configured",
        reason="it lacks " + ", ".join(missing.listed()),
        remedy="install a kernel pack or backend that offers these, or choose --backend cpu",
        details={"backend": backend, "missing": missing.listed()},
    )


def _asked_by(origin: str) -> str:
    if origin == "flag":
        return "chosen by --backend"
    if origin == "default":
        return "default"
    return f"chosen by {origin.removeprefix('environment ')}"
