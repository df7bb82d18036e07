"""``PluginLock``: exactly which plugins a run may use, as data that another process can compare with what it has.

The file is written by ``deepinfer plugins lock`` and named by ``plugins.lock``. Whoever gets a lock, be it a child
process, a rank of a group or the next run, compares before it imports (``spec/plugins.md`` 5 and 13).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import attrs
from attrs import frozen

from deepinfer_core.errors import ManifestError, PluginLockError
from deepinfer_core.plugins.discovery import discover
from deepinfer_core.plugins.manifest import Manifest, read_manifest
from deepinfer_core.plugins.record import PluginRecord

SCHEMA = 1
MAX_BYTES = 1 << 20


@frozen
class LockedPlugin:
    """One plugin, by everything that may not change without being noticed."""

    kind: str
    name: str
    distribution: str
    version: str
    entry: str
    """Value of its entry point."""
    manifest: str
    """SHA-256 of its ``deepinfer.toml``."""
    api: str
    """Plugin API versions that it supports."""
    contracts: Mapping[str, str]
    """Record that its compiled code reads -> ``FIELDS:CHAIN``."""

    @property
    def key(self) -> str:
        return f"{self.kind}:{self.name}"

    @property
    def title(self) -> str:
        return f"{self.kind} {self.name} ({self.distribution} {self.version})"

    @classmethod
    def of(cls, record: PluginRecord) -> Self:
        """The plugin as it is installed. A record without a manifest has empty fields for it."""
        manifest = record.manifest
        return cls(
            record.kind,
            record.name,
            record.distribution,
            record.version,
            record.entry.value,
            manifest.sha256 if manifest else "",
            manifest.api if manifest else "",
            _contracts(manifest),
        )

    def difference(self, other: LockedPlugin) -> tuple[str, object, object] | None:
        """The first field that differs, with its value here and there; None if the plugins are the same."""
        for declared in attrs.fields(LockedPlugin):
            here, there = getattr(self, declared.name), getattr(other, declared.name)
            if here != there:
                return declared.name, here, there
        return None


@frozen
class PluginLock:
    """Plugins in the order in which they load."""

    plugins: tuple[LockedPlugin, ...]
    source: str = "the plugin lock"
    """What to call it in a message."""

    @classmethod
    def of(cls, records: Iterable[PluginRecord]) -> Self:
        return cls(tuple(LockedPlugin.of(record) for record in records))

    @classmethod
    def read(cls, path: Path) -> Self:
        """The lock in a file. Raises PluginLockError where there is none."""
        try:
            with path.open("rb") as stream:
                data = stream.read(MAX_BYTES + 1)
        except OSError as exc:
            raise _no_lock(path, exc.strerror or str(exc)) from exc
        if len(data) > MAX_BYTES:
            raise _no_lock(path, f"it is larger than {MAX_BYTES} bytes")
        try:
            top = json.loads(data.decode("utf-8"))
            if top["schema"] != SCHEMA:
                raise _no_lock(path, f"its schema is {top['schema']!r}, this release reads {SCHEMA}")
            return cls(tuple(_from_data(item) for item in top["plugins"]), str(path))
        except (ValueError, TypeError, KeyError, RecursionError) as exc:
            raise _no_lock(path, f"it is no plugin lock: {type(exc).__name__}: {exc}") from exc

    def as_text(self) -> str:
        """The file's text: the same plugins give the same text."""
        plugins = [attrs.asdict(plugin) for plugin in self.plugins]
        return json.dumps({"schema": SCHEMA, "plugins": plugins}, indent=1) + "\n"

    def find(self, key: str) -> LockedPlugin | None:
        """The plugin of this KIND:NAME."""
        return next((plugin for plugin in self.plugins if plugin.key == key), None)


def as_data(plugin: LockedPlugin) -> dict[str, Any]:
    """The plugin for another process."""
    return attrs.asdict(plugin)


def _from_data(item: Mapping[str, Any]) -> LockedPlugin:
    names = [declared.name for declared in attrs.fields(LockedPlugin)]
    if sorted(item) != sorted(names):
        raise ValueError(f"a plugin has the fields {', '.join(sorted(item))}")
    for name in names:
        value = item[name]
        texts = [value] if name != "contracts" else [*value, *value.values()]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{name} is {value!r}")
    return LockedPlugin(**item)


def check_installed(given: Mapping[str, Any]) -> None:
    """Compare a plugin that another process gave with what this one would import. Raises PluginLockError."""
    locked = _from_data(given)
    try:
        entries = list(metadata.distribution(locked.distribution).entry_points)
    except metadata.PackageNotFoundError:
        entries = []
    named = _found(locked, entries)
    if locked in named:
        return
    # Only the scan that the parent made finds a distribution whose folder is not called as its metadata say.
    here = [*_found(locked, None), *named]  # a scan of this process may be older than the plugin
    if locked in here:
        return
    source = "the process that started this one"
    difference = locked.difference(here[0]) if here else None
    raise differs(locked, difference, source) if difference else absent(locked, source)


def _found(locked: LockedPlugin, entries: Iterable[metadata.EntryPoint] | None) -> list[LockedPlugin]:
    """The plugins of that name and distribution among ``entries`` (None: the installed ones), as they are here."""
    found, manifests = discover(entries)
    key = (locked.kind, locked.name, locked.distribution)
    own = [item for item in found if (item.kind, item.name, item.distribution) == key]
    if not own:
        return []
    values = manifests.get(locked.distribution, [])
    manifest, sha256 = None, ""
    try:
        manifest = read_manifest(values[0]) if values else None
        sha256 = manifest.sha256 if manifest else ""
    except ManifestError as exc:
        sha256 = exc.what
    api = manifest.api if manifest else ""
    return [LockedPlugin(*key, item.version, item.entry.value, sha256, api, _contracts(manifest)) for item in own]


def _contracts(manifest: Manifest | None) -> dict[str, str]:
    tables = manifest.contracts if manifest is not None else {}
    return {name: f"{table.fields}:{table.chain}" for name, table in sorted(tables.items())}


def differs(
    locked: LockedPlugin, difference: tuple[str, object, object], source: str, *, in_place: bool = False
) -> PluginLockError:
    """The error for a plugin that is not as it was locked: ``difference`` is field, locked value, value here.

    :param in_place: It is an editable installation, which no index can put back.
    """
    name, wanted, here = difference
    again = "put its source tree back" if in_place else "pip install --force-reinstall {0.distribution}=={0.version}"
    return PluginLockError(
        f"{locked.kind} {locked.name} is not as locked: {name} is {_shown(here)}, locked is {_shown(wanted)}",
        reason=f"{source} has {locked.distribution} {locked.version}",
        remedy=f"{again.format(locked)}, {_RENEW}",
        details={"plugin": locked.key, "field": name, "locked": wanted, "here": here},
    )


def absent(locked: LockedPlugin, source: str) -> PluginLockError:
    """The error for a locked plugin that is not installed."""
    return PluginLockError(
        f"{locked.kind} {locked.name} is locked, and not installed",
        reason=f"{source} has {locked.distribution} {locked.version}",
        remedy=f"pip install {locked.distribution}=={locked.version}, {_RENEW}",
        details={"plugin": locked.key, "field": "distribution", "locked": locked.distribution, "here": None},
    )


def together(problems: Sequence[PluginLockError]) -> PluginLockError:
    """One error for all differences."""
    first, *others = problems
    if not others:
        return first
    return PluginLockError(
        "; ".join(problem.what for problem in problems),
        reason=f"{len(problems)} plugins differ: {', '.join(sorted({p.reason for p in problems}))}",
        remedy=f"install what is locked, {_RENEW}",
        details={"differences": [problem.details for problem in problems]},
    )


_RENEW = "or lock what is installed: deepinfer plugins lock --out FILE"


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in value.items()) or "none"
    return str(value) or "missing"


def _no_lock(path: Path, reason: str) -> PluginLockError:
    can_be_one = path.is_file() or (path.parent.is_dir() and not path.exists())
    return PluginLockError(
        f"the plugin lock {path} cannot be used",
        reason=reason,
        remedy=f"write it with: deepinfer plugins lock --out {path if can_be_one else 'FILE'}",
        details={"path": str(path)},
    )
