"""Step 3: what is installed, and in which state, settled without importing any of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path

from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import DeepInferError, ManifestError, PluginLockError, PluginMissing
from deepinfer_core.plugins.conflicts import settle_conflicts
from deepinfer_core.plugins.discovery import Found, discover, package_folders, unread_distributions
from deepinfer_core.plugins.lock import PluginLock
from deepinfer_core.plugins.lock_check import apply_lock
from deepinfer_core.plugins.manifest import Manifest, PluginTable, read_manifest
from deepinfer_core.plugins.record import PluginRecord
from deepinfer_core.plugins.static_checks import check_static
from deepinfer_core.plugins.unmatched import unmatched_names
from deepinfer_core.settings import did_you_mean

__all__ = ["PluginRecord", "Registry"]


class Registry:
    """All records of the environment. Lookup by kind and name."""

    def __init__(self, records: Iterable[PluginRecord], lock_problems: Iterable[PluginLockError] = ()) -> None:
        self.records = list(records)
        self.lock_problems = tuple(lock_problems)
        """How what is installed differs from ``plugins.lock``; no engine is made of it then."""

    @classmethod
    def build(
        cls,
        config: EngineConfig,
        entries: Iterable[metadata.EntryPoint] | None = None,
        *,
        warn: Callable[[str], object] | None = None,
    ) -> Registry:
        """Find and check every plugin. Never raises for a faulty plugin; its record says what is wrong.

        Raises PluginLockError for a file of ``plugins.lock`` that is none.

        :param entries: Entry points to use in place of the installed ones.
        :param warn: Gets a line for each setting that names a plugin that is not installed (``W_PLUGIN``), and for each
            distribution whose entry points cannot be read (``W_METADATA``); None: standard error does.
        """
        found, manifest_values = discover(entries)
        unread = unread_distributions() if entries is None else ()
        manifests = _read_manifests(found, manifest_values)
        records = [_record(item, manifests[item.distribution]) for item in found]
        for record in records:
            check_static(record, manifests[record.distribution], config.plugins)
        problems = apply_lock(records, PluginLock.read(Path(config.plugins.lock))) if config.plugins.lock else []
        settle_conflicts(records, config.plugins)
        for line in (*unread, *unmatched_names(records, config.plugins)):
            if warn is not None:
                warn(line)
            else:
                sys.stderr.write(f"deepinfer: {line}\n")
        return cls(records, problems)

    def __iter__(self) -> Iterator[PluginRecord]:
        return iter(self.records)

    def of_kind(self, kind: str, *, usable: bool = True) -> list[PluginRecord]:
        """Records of one kind by name; ``usable`` leaves out those in an end state."""
        return [record for record in self.records if record.kind == kind and (record.usable or not usable)]

    def find(self, kind: str, name: str) -> PluginRecord | None:
        """The record that owns the name: the usable one, else the first that says why there is none."""
        named = [record for record in self.records if record.kind == kind and record.name == name]
        return next((record for record in named if record.usable), named[0] if named else None)

    def named(self, name: str) -> list[PluginRecord]:
        """The plugins that a person may mean by ``name``: a name, KIND:NAME, or a distribution.

        :raises PluginMissing: there is none; lists the installed ones.
        """
        records = [record for record in self.records if name in (record.name, record.key, record.distribution)]
        if not records:
            names = sorted({record.name for record in self.records})
            raise PluginMissing(
                f"no plugin named {name!r}{did_you_mean(name, names)}",
                reason=f"installed plugins: {', '.join(names) or 'none'}",
                remedy="run: deepinfer plugins",
            )
        return records

    def missing(self, kind: str, name: str) -> DeepInferError:
        """The error for a name that nobody provides, with the installed names."""
        names = sorted({record.name for record in self.records if record.kind == kind})
        others = sorted({record.kind for record in self.records if record.name == name})
        return PluginMissing(
            f"no {kind} named {name!r}{did_you_mean(name, names)}",
            reason=f"installed {kind}s: {', '.join(names) or 'none'}"
            + "".join(f"; {name} is a {other}" for other in others),
            remedy=f"choose one of these, or pip install the plugin that provides {name!r}",
            details={"kind": kind, "name": name, "installed": names},
        )


_AT_INSTALLATION = {"entry_points": "as they were when it was installed"}


def _read_manifests(found: list[Found], values: dict[str, list[str]]) -> dict[str, Manifest | ManifestError]:
    """Distribution -> its manifest, or what is wrong with it; a table without its entry point counts as wrong."""
    result: dict[str, Manifest | ManifestError] = {}
    for distribution in sorted({item.distribution for item in found}):
        entries = {(item.kind, item.name) for item in found if item.distribution == distribution}
        try:
            result[distribution] = _manifest_of(values.get(distribution, []), entries)
        except ManifestError as exc:
            result[distribution] = exc
    return result


def _manifest_of(values: list[str], entries: set[tuple[str, str]]) -> Manifest:
    if not values:
        raise ManifestError("no entry point in group deepinfer.manifest")
    if len(values) > 1:
        raise ManifestError("several entry points in group deepinfer.manifest: " + ", ".join(sorted(values)))
    manifest = read_manifest(values[0])
    for kind, name in manifest.tables:
        if (kind, name) not in entries:
            guess = did_you_mean(name, [entry for entry_kind, entry in entries if entry_kind == kind])
            where = f"has no entry point in group deepinfer.{kind}s"
            raise ManifestError(f"{manifest.path.name}: {kind} {name!r} {where}{guess}", details=_AT_INSTALLATION)
    for kind, name in sorted(entries):
        if (kind, name) not in manifest.tables:
            what = f"{manifest.path.name}: entry point {name!r} has no table [[{kind}]]"
            raise ManifestError(what, details=_AT_INSTALLATION)
    return manifest


def _record(item: Found, manifest: Manifest | ManifestError) -> PluginRecord:
    good = manifest if isinstance(manifest, Manifest) else None
    table = (good and good.tables.get((item.kind, item.name))) or PluginTable(kind=item.kind, name=item.name)
    home = good.path.parent if good is not None else None  # that of the manifest: nothing is searched twice
    folders = [home] if home is not None and home.name == item.top_package else package_folders(item.top_package)
    return PluginRecord(
        kind=item.kind,
        name=item.name,
        distribution=item.distribution,
        version=item.version,
        entry=item.entry,
        folder=folders[0] if folders else None,
        editable=item.editable,
        table=table,
        manifest=good,
    )
