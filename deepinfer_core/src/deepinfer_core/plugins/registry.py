"""Step 3: what is installed, and in which state, settled without importing any of it.

::

    found --load--> loaded                       disabled      by configuration
      |                                          invalid       manifest, name, or a reserved name taken
      +--> failed (import, register,             incompatible  plugin API or contract
           probe, create)                        conflict      two distributions give one name
                                                 shadowed      another distribution is preferred for the name

Every state but ``found`` and ``loaded`` is an end state with ``phase``, ``code``, ``reason`` and ``remedy``
(``spec/plugins.md`` 4 and 8).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal

from attrs import define

from deepinfer_core import API_VERSION
from deepinfer_core.config import EngineConfig, PluginSettings
from deepinfer_core.errors import (
    ApiVersionError,
    ContractError,
    DeepInferError,
    ManifestError,
    PluginConflict,
    PluginError,
    PluginMissing,
)
from deepinfer_core.plugins.discovery import Found, discover, package_folders
from deepinfer_core.plugins.manifest import KINDS, NAME, Manifest, PluginTable, read_manifest
from deepinfer_core.plugins.unmatched import unmatched_names
from deepinfer_core.settings import did_you_mean

State = Literal["found", "loaded", "disabled", "invalid", "incompatible", "conflict", "shadowed", "failed"]

RESERVED_WORDS = frozenset({"auto", "none", "all"})
# A first-party name belongs to one distribution; another one gets it only through plugins.prefer.
FIRST_PARTY = {
    ("backend", "cpu"): "deepinfer-cpu",
    ("backend", "cuda"): "deepinfer-cuda",
    ("backend", "ascend"): "deepinfer-ascend",
    ("model", "deepseek_v41"): "deepinfer-v41",
    ("sampler", "canonical"): "deepinfer-samplers",
    ("grammar", "xgrammar"): "deepinfer-samplers",
}
FIRST_PARTY_DISTRIBUTIONS = frozenset(FIRST_PARTY.values())
_RESERVED_NAMES = {name for _, name in FIRST_PARTY}


@define
class PluginRecord:
    """One plugin: where it comes from and what became of it."""

    kind: str
    name: str
    distribution: str
    version: str
    entry: metadata.EntryPoint
    folder: Path | None
    editable: bool
    table: PluginTable
    manifest: Manifest | None = None
    state: State = "found"
    phase: str = ""
    error: DeepInferError | None = None
    note: str = ""
    """The state's reason in a few words, for a table."""

    @property
    def key(self) -> str:
        return f"{self.kind}:{self.name}"

    @property
    def title(self) -> str:
        """``backend toy (acme-toy 1.0)``: kind, name and the distribution to blame."""
        return f"{self.kind} {self.origin}"

    @property
    def origin(self) -> str:
        """``toy (acme-toy 1.0)``."""
        return f"{self.name} ({self.distribution} {self.version})"

    @property
    def usable(self) -> bool:
        return self.state in ("found", "loaded")

    @property
    def code(self) -> str:
        return self.error.code if self.error else ""

    @property
    def reason(self) -> str:
        """What is wrong, in one line."""
        return self.error.what if self.error else ""

    @property
    def remedy(self) -> str:
        return self.error.remedy if self.error else ""

    @property
    def faulty(self) -> bool:
        """In an end state that nobody chose."""
        return self.state in ("invalid", "incompatible", "conflict", "failed")

    @property
    def detail(self) -> str:
        """One cell of a table: the summary, or what is wrong."""
        return self.table.summary if self.usable else self.note or self.reason

    @property
    def short_location(self) -> str:
        """``site-packages/acme``: enough to see a stale installation; :attr:`folder` has the whole path."""
        if self.folder is None:
            return "-"
        return "/".join(self.folder.parts[-2:]) + (" (editable)" if self.editable else "")

    def end(self, state: State, phase: str, error: DeepInferError, note: str = "") -> None:
        """Enter an end state. The first one stays: a later failure would hide its cause."""
        if self.usable:
            self.state, self.phase, self.error, self.note = state, phase, error, note


class Registry:
    """All records of the environment. Lookup by kind and name."""

    def __init__(self, records: Iterable[PluginRecord]) -> None:
        self.records = list(records)

    @classmethod
    def build(
        cls,
        config: EngineConfig,
        entries: Iterable[metadata.EntryPoint] | None = None,
        *,
        warn: Callable[[str], object] | None = None,
    ) -> Registry:
        """Find and check every plugin. Never raises for a faulty plugin; its record says what is wrong.

        :param entries: Entry points to use in place of the installed ones.
        :param warn: Gets a line for each setting that names a plugin that is not installed (``W_PLUGIN``); None:
            standard error does.
        """
        found, manifest_values = discover(entries)
        manifests = _read_manifests(found, manifest_values)
        records = [_record(item, manifests[item.distribution]) for item in found]
        for record in records:
            _check_static(record, manifests[record.distribution], config.plugins)
        _settle_conflicts(records, config.plugins)
        for line in unmatched_names(records, config.plugins):
            if warn is not None:
                warn(line)
            else:
                sys.stderr.write(f"deepinfer: {line}\n")
        return cls(records)

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
        return PluginMissing(
            f"no {kind} named {name!r}{did_you_mean(name, names)}",
            reason=f"installed {kind}s: {', '.join(names) or 'none'}",
            remedy=f"choose one of these, or pip install the plugin that provides {name!r}",
            details={"kind": kind, "name": name, "installed": names},
        )


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
            raise ManifestError(f"{manifest.path.name}: {kind} {name!r} has no entry point in group deepinfer.{kind}s")
    for kind, name in sorted(entries):
        if (kind, name) not in manifest.tables:
            raise ManifestError(f"{manifest.path.name}: entry point {name!r} has no table [[{kind}]]")
    return manifest


def _record(item: Found, manifest: Manifest | ManifestError) -> PluginRecord:
    good = manifest if isinstance(manifest, Manifest) else None
    table = (good and good.tables.get((item.kind, item.name))) or PluginTable(kind=item.kind, name=item.name)
    folders = package_folders(item.top_package)
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


def _check_static(record: PluginRecord, manifest: Manifest | ManifestError, settings: PluginSettings) -> None:
    """The checks that need no import, in the order of ``spec/plugins.md`` 4."""
    disabled = _disabled_by(record, settings)
    if disabled:
        record.end(
            "disabled",
            "configuration",
            PluginError(
                f"{record.title} is disabled",
                reason=f"it is {disabled}",
                remedy="change that setting to use it",
            ),
            disabled,
        )
        return
    problem = _name_problem(record, settings) or (manifest if isinstance(manifest, ManifestError) else None)
    if problem is not None:
        record.end("invalid", "manifest", _of_plugin(record, problem), problem.what)
        return
    if record.manifest is None:
        return
    incompatible = _api_problem(record, record.manifest) or _contract_problem(record, record.manifest)
    if incompatible is not None:
        state: State = "invalid" if isinstance(incompatible, ManifestError) else "incompatible"
        phase, note = "contract", ""
        if isinstance(incompatible, ApiVersionError):
            phase, note = "api", f"needs API {record.manifest.api}; core has {_core_api()}"
        record.end(state, phase, incompatible, note)


def _disabled_by(record: PluginRecord, settings: PluginSettings) -> str:
    names = {record.name, record.key, record.distribution}
    if names & set(settings.disable):
        return "named in plugins.disable (--no-plugin)"
    if settings.allow is None or record.distribution in FIRST_PARTY_DISTRIBUTIONS or names & set(settings.allow):
        return ""
    return "not named in plugins.allow (DEEPINFER_PLUGINS)"


def _name_problem(record: PluginRecord, settings: PluginSettings) -> ManifestError | None:
    name = record.name
    if not NAME.fullmatch(name):
        return ManifestError(f"the name {name!r} is not of the form [a-z][a-z0-9_]*, at most 32 characters")
    if name in RESERVED_WORDS:
        return ManifestError(f"the name {name!r} is reserved")
    owner = FIRST_PARTY.get((record.kind, name))
    if name in _RESERVED_NAMES and record.distribution != owner:
        if settings.prefer.get(record.key) == record.distribution:
            return None
        return ManifestError(
            f"the name {name!r} is reserved for {owner or 'first-party plugins'}",
            remedy=f'set plugins.prefer."{record.key}" = "{record.distribution}" if you want this plugin in its place',
        )
    return None


def _of_plugin(record: PluginRecord, problem: ManifestError) -> ManifestError:
    """The problem, told as one of this plugin."""
    return ManifestError(
        f"{record.title} has an invalid description: {problem.what}",
        reason=problem.reason,
        remedy=problem.remedy or f"ask the authors of {record.distribution}, or pip uninstall it",
    )


def _api_problem(record: PluginRecord, manifest: Manifest) -> DeepInferError | None:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    core = _core_api()
    try:
        accepted = SpecifierSet(manifest.api)
    except InvalidSpecifier:
        return _of_plugin(record, ManifestError(f"{manifest.path.name}: api {manifest.api!r} is no version range"))
    if accepted.contains(core, prereleases=True):
        return None
    return ApiVersionError(
        f"plugin {record.name} ({record.distribution} {record.version}) needs plugin API {manifest.api}",
        reason=f"this core provides {core}",
        remedy=f"pip install -U {record.distribution} deepinfer-core",
        details={"plugin": record.key, "needs": manifest.api, "core": core},
    )


def _core_api() -> str:
    return f"{API_VERSION[0]}.{API_VERSION[1]}"


def _contract_problem(record: PluginRecord, manifest: Manifest) -> DeepInferError | None:
    if not manifest.contracts:
        return None
    from deepinfer_core.plugins.contract_check import contract_difference  # 40 ms, only for compiled plugins

    for name, table in sorted(manifest.contracts.items()):
        difference = contract_difference(name, table.fields, table.chain)
        if difference:
            return ContractError(
                f"{name} of {record.distribution} {record.version} differs: {difference}",
                reason="its compiled code was built for another definition of the record",
                remedy=f"pip install -U {record.distribution} deepinfer-core",
                details={"plugin": record.key, "contract": name},
            )
    return None


def _settle_conflicts(records: list[PluginRecord], settings: PluginSettings) -> None:
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
