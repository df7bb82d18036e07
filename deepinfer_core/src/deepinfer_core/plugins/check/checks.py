"""Everything that installation, listing and loading will ask of a plugin, all of it at once."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from deepinfer_core.plugins.check.code_notes import module_notes
from deepinfer_core.plugins.check.notes import Note
from deepinfer_core.plugins.check.packing import packing_note
from deepinfer_core.plugins.check.subject import Entry, FolderFiles, Subject, read_subject
from deepinfer_core.plugins.discovery import KIND_OF_GROUP, MANIFEST_GROUP
from deepinfer_core.plugins.manifest import Manifest, check_manifest, split_manifest_value
from deepinfer_core.plugins.names import FIRST_PARTY, name_problem
from deepinfer_core.plugins.static_checks import core_api
from deepinfer_core.settings import did_you_mean

OLDEST_PYTHON = "3.11"
_KEYS_PAGE = "the reference page of deepinfer.toml has every key"


def examine(path: Path, commands: Collection[str] = ()) -> tuple[Subject, list[Note]]:
    """All notes about the distribution at ``path``. Imports and builds nothing of it.

    :param commands: Names of the core's own commands.
    :raises InvalidInputFile: there is no distribution.
    """
    subject = read_subject(path)
    return subject, [*subject.notes, *_Examination(subject, commands).notes()]


class _Examination:
    def __init__(self, subject: Subject, commands: Collection[str]) -> None:
        self.subject = subject
        self.commands = commands
        self.entries = [entry for entry in subject.entries if entry.group in KIND_OF_GROUP]
        self.manifest: Manifest | None = None

    def notes(self) -> Iterator[Note]:
        yield from self._project()
        yield from self._dependencies()
        yield from self._entry_points()
        yield from self._manifest()
        if self.manifest is not None:
            yield from self._tables(self.manifest)
            yield from self._api(self.manifest)
            yield from self._contracts(self.manifest)
        yield from self._modules()

    def _project(self) -> Iterator[Note]:
        subject = self.subject
        if not subject.name:
            yield Note("problem", "project", "the distribution has no name", "give project.name")
        if not subject.version:
            yield Note("problem", "project", "the distribution has no version", "give project.version")
        if "deepinfer" in subject.scripts:
            text = "it publishes the command deepinfer, which is that of deepinfer-core"
            yield Note("problem", "project", text, "add subcommands with deepinfer_cli_commands")
        try:
            wanted = SpecifierSet(subject.requires_python)
        except InvalidSpecifier:
            text = f"requires-python {subject.requires_python!r} is no version range"
            yield Note("problem", "project", text, f'requires-python = ">={OLDEST_PYTHON}"')
            return
        if not subject.requires_python or wanted.contains("3.10"):
            text = (
                f"requires-python is {subject.requires_python or 'missing'}, and deepinfer-core needs {OLDEST_PYTHON}"
            )
            yield Note("warning", "project", text, f'requires-python = ">={OLDEST_PYTHON}"')

    def _dependencies(self) -> Iterator[Note]:
        needed: dict[str, Requirement] = {}
        for text in self.subject.requires:
            try:
                requirement = Requirement(text)
            except InvalidRequirement as exc:
                yield Note("problem", "dependencies", f"{text!r} is no requirement: {exc}", "correct it")
                continue
            needed[canonicalize_name(requirement.name)] = requirement
        core = needed.get("deepinfer-core")
        if self.subject.name == "deepinfer-core" or "dependencies" in _dynamic(self.subject):
            return
        if core is None:
            text = "deepinfer-core is no dependency, so pip cannot see that a release of it does not fit"
            yield Note("problem", "dependencies", text, 'add "deepinfer-core>=0.1,<0.2" to dependencies')
        elif not any(item.operator in ("<", "<=", "==", "~=", "===") for item in core.specifier):
            text = f"deepinfer-core{core.specifier} has no upper bound, and the plugin API may change with a release"
            yield Note("warning", "dependencies", text, "add one, for example deepinfer-core>=0.1,<0.2")
        else:
            yield Note("ok", "dependencies", f"deepinfer-core{core.specifier}")
        is_backend = any(entry.group == "deepinfer.backends" for entry in self.entries)
        if is_backend and "deepinfer-cpu" not in needed and self.subject.name != "deepinfer-cpu":
            text = "a backend gets the ops that it leaves out from deepinfer-cpu, which is no dependency"
            yield Note("warning", "dependencies", text, "add deepinfer-cpu to dependencies, or provide every op")

    def _entry_points(self) -> Iterator[Note]:
        known = (MANIFEST_GROUP, *KIND_OF_GROUP)
        for group in dict.fromkeys(entry.group for entry in self.subject.entries):
            if group.startswith("deepinfer") and group not in known:
                text = f"group {group!r} is read by nobody{did_you_mean(group, known)}"
                yield Note("problem", "entry points", text, f"groups are {', '.join(known)}")
        if not self.entries and "entry-points" not in _dynamic(self.subject):
            text = "there is no entry point in a group of deepinfer, so nothing is found when it is installed"
            yield Note("problem", "entry points", text, f"add one in a group of {', '.join(KIND_OF_GROUP)}")
        for entry in self.entries:
            kind = KIND_OF_GROUP[entry.group]
            problem = name_problem(kind, entry.name, canonicalize_name(self.subject.name), {})
            if problem is not None:
                owned = FIRST_PARTY.get((kind, entry.name))
                remedy = f"choose another name{f', or install {owned}' if owned else ''}"
                yield Note("problem", "entry points", f"{kind} {entry.name!r}: {problem.what}", remedy)
        if self.entries:
            listed = ", ".join(f"{KIND_OF_GROUP[entry.group]} {entry.name}" for entry in self.entries)
            yield Note("ok", "entry points", listed)

    def _manifest(self) -> Iterator[Note]:
        subject = self.subject
        own = [entry for entry in subject.entries if entry.group == MANIFEST_GROUP]
        if len(own) != 1:
            if not own and "entry-points" in _dynamic(subject):
                return
            text = "no entry point" if not own else f"{len(own)} entry points"
            package = next((entry.value.partition(".")[0] for entry in self.entries), "PACKAGE")
            remedy = f'[project.entry-points."{MANIFEST_GROUP}"] {subject.name} = "{package}:deepinfer.toml"'
            yield Note("problem", "manifest", f"{text} in group {MANIFEST_GROUP}, where there must be one", remedy)
            return
        [entry] = own
        if canonicalize_name(entry.name) != canonicalize_name(subject.name):
            text = f"its entry point is called {entry.name!r}, and the distribution {subject.name!r}"
            yield Note("warning", "manifest", text, "give it the distribution's name")
        package, filename, problem = split_manifest_value(entry.value)
        if problem:
            yield Note("problem", "manifest", problem, f'write it as "PACKAGE:{filename or "deepinfer.toml"}"')
            return
        data = subject.files.read(f"{package}/{filename}")
        if data is None:
            remedy = "make it" if subject.form == "source tree" else "have the build take it along, and build again"
            yield Note("problem", "manifest", f"there is no {package}/{filename} in the {subject.form}", remedy)
            return
        self.manifest, problems = check_manifest(data, Path(filename))
        yield from (
            Note("problem", "manifest", text, "the reference page of deepinfer.toml has every key") for text in problems
        )
        if not problems:
            yield Note("ok", "manifest", f"{package}/{filename}, SHA-256 {self.manifest.sha256[:16]}")
        if subject.form == "source tree" and isinstance(subject.files, FolderFiles):
            yield packing_note(subject.path, subject.project, subject.files.packages[package] / filename)

    def _tables(self, manifest: Manifest) -> Iterator[Note]:
        entries = {(KIND_OF_GROUP[entry.group], entry.name): entry for entry in self.entries}
        for kind, name in sorted(manifest.tables.keys() - entries.keys()):
            text = f"{kind} {name!r} has no entry point in group deepinfer.{kind}s"
            yield Note("problem", "tables", text, "add the entry point, or remove the table")
        for kind, name in sorted(entries.keys() - manifest.tables.keys()):
            text = f"entry point {name!r} has no table [[{kind}]]"
            yield Note("problem", "tables", text, f'add [[{kind}]] with name = "{name}"')
        for (kind, name), table in sorted(manifest.tables.items()):
            if not table.summary:
                text = f"{kind} {name!r} has no summary, which deepinfer plugins shows"
                yield Note("warning", "tables", text, 'add summary = "..."')
            for command in table.commands:
                if command.name in self.commands:
                    text = f"command {command.name!r} of {name} is one of the core's, and runs under its long name only"
                    yield Note("problem", "tables", text, "choose another name")
            entry = entries.get((kind, name))
            if table.checkpoint is not None and entry is not None:
                folder = f"{_top(entry)}/{table.checkpoint}"
                if self.subject.files.read(f"{folder}/config.json") is None:
                    text = f"checkpoint of {name}: there is no {folder}/config.json in the {self.subject.form}"
                    yield Note("problem", "tables", text, "correct the path, or have the build take the folder along")

    def _api(self, manifest: Manifest) -> Iterator[Note]:
        if not manifest.api:
            return
        try:
            accepted = SpecifierSet(manifest.api)
        except InvalidSpecifier:
            yield Note("problem", "api", f"{manifest.api!r} is no version range", 'for example api = ">=1.0,<2"')
            return
        if not accepted.contains(core_api(), prereleases=True):
            text = f"{manifest.api} does not take {core_api()}, the plugin API of this core"
            yield Note("problem", "api", text, "change api, or check it with the core that it is for")
        elif accepted.contains("999.0", prereleases=True):
            text = f"{manifest.api} has no upper bound, so a core that removed a hook would still load it"
            yield Note("warning", "api", text, 'add one: api = ">=1.0,<2"')
        else:
            yield Note("ok", "api", f"{manifest.api} takes {core_api()}")

    def _contracts(self, manifest: Manifest) -> Iterator[Note]:
        if not manifest.contracts:
            return
        from deepinfer_core.plugins.contract_check import contract_difference  # numpy, for compiled plugins only

        for name, table in sorted(manifest.contracts.items()):
            difference = contract_difference(name, table.fields, table.chain, table.chains)
            if difference is None:
                yield Note("ok", "contracts", f"{name}, {table.fields} fields")
            else:
                yield Note("problem", "contracts", f"{name}: {difference[0]}", "build against these contracts")

    def _modules(self) -> Iterator[Note]:
        tables = self.manifest.tables if self.manifest is not None else {}
        for value in dict.fromkeys(entry.value for entry in self.entries):
            keys = {(KIND_OF_GROUP[entry.group], entry.name) for entry in self.entries if entry.value == value}
            has_commands = any(tables[key].commands for key in keys & tables.keys())
            yield from module_notes(self.subject.files, value, {kind for kind, _ in keys}, has_commands=has_commands)


def _dynamic(subject: Subject) -> list[str]:
    project = subject.project.get("project", {})
    found = project.get("dynamic", []) if isinstance(project, dict) else []
    return [item for item in found if isinstance(item, str)] if isinstance(found, list) else []


def _top(entry: Entry) -> str:
    return entry.value.partition(":")[0].partition(".")[0].strip()
