"""Two plugins for one name: the preferred one, or none (``spec/plugins.md`` 8)."""

from __future__ import annotations

from deepinfer_core.config import PluginSettings
from deepinfer_core.errors import PluginConflict
from deepinfer_core.plugins.manifest import KINDS
from deepinfer_core.plugins.record import PluginRecord


def settle_conflicts(records: list[PluginRecord], settings: PluginSettings) -> None:
    """Two usable plugins for one (kind, name): the preferred one, or none. Order of installation never decides."""
    groups: dict[str, list[PluginRecord]] = {}
    for record in records:
        if record.usable and record.kind in KINDS:
            groups.setdefault(record.key, []).append(record)
    for key, group in groups.items():
        if len(group) < 2:
            continue
        preferred = settings.prefer.get(key)
        winners = [record for record in group if record.distribution == preferred]
        if len(winners) == 1:
            for record in group:
                if record is not winners[0]:
                    error = PluginConflict(
                        f"{record.title} gives way to {winners[0].distribution}",
                        reason=f'plugins.prefer."{key}" = "{preferred}"',
                        remedy="change plugins.prefer to use it",
                    )
                    record.end("shadowed", "conflict", error, f"plugins.prefer names {preferred}")
            continue
        for record in group:
            others = sorted(f"{other.distribution} {other.version}" for other in group if other is not record)
            record.end("conflict", "conflict", _conflict(key, group, preferred), f"also given by {', '.join(others)}")


def _conflict(key: str, group: list[PluginRecord], preferred: str | None) -> PluginConflict:
    kind, _, name = key.partition(":")
    owners = sorted({record.distribution for record in group})
    listed = ", ".join(sorted(f"{record.distribution} {record.version}" for record in group))
    reason = "the order of installation does not decide"
    if preferred is not None:
        reason += f", and plugins.prefer names {preferred!r}, which does not provide it"
    if len(owners) == 1:
        remedy = f"ask the authors of {owners[0]}, or pip uninstall it"
    else:
        remedy = f'set plugins.prefer."{key}" = "{owners[0]}" in the settings file, or pip uninstall one of them'
    return PluginConflict(
        f"{kind} {name!r} is provided by {'two' if len(group) == 2 else len(group)} "
        f"{'entry points' if len(owners) == 1 else 'distributions'}: {listed}",
        reason=reason,
        remedy=remedy,
        details={"kind": kind, "name": name, "distributions": owners},
    )
