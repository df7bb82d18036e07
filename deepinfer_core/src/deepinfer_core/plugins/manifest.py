"""Step 2: read ``deepinfer.toml``, the static description of a distribution's plugins, as text.

The file says what a plugin is before its code runs (``spec/plugins.md`` 2). Anything unknown in it makes its plugins
``invalid``: a misspelt key would otherwise be a promise that nobody checks.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import field, frozen

from deepinfer_core.errors import ManifestError
from deepinfer_core.plugins.discovery import package_folders
from deepinfer_core.plugins.manifest_keys import (
    COMMAND_KEYS,
    CONTRACT_KEYS,
    KINDS,
    REQUIRES_KEYS,
    TOP_KEYS,
    Key,
    plugin_keys,
)
from deepinfer_core.settings import did_you_mean

__all__ = [
    "COMMAND",
    "KINDS",
    "MAX_BYTES",
    "NAME",
    "CommandTable",
    "ContractTable",
    "Manifest",
    "PluginTable",
    "Requires",
    "check_manifest",
    "parse_manifest",
    "read_manifest",
    "split_manifest_value",
]

MAX_BYTES = 256 << 10
NAME = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)
COMMAND = re.compile(r"[a-z][a-z0-9_-]{0,31}", re.ASCII)
_CHAIN = re.compile(r"[0-9a-f]{16}", re.ASCII)


@frozen
class Requires:
    """What must hold on the host before a backend is probed under ``auto``. Empty: nothing."""

    os: tuple[str, ...] = ()
    machine: tuple[str, ...] = ()
    any_path: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


@frozen
class CommandTable:
    """A command of the plugin, by name, so that no plugin has to be imported to know whose it is."""

    name: str
    summary: str


@frozen
class PluginTable:
    """One ``[[backend]]``, ``[[model]]``, ... table."""

    kind: str
    name: str
    summary: str = ""
    claims: frozenset[str] = frozenset()
    claims_on: Mapping[str, frozenset[str]] = field(factory=dict)
    """Architecture -> what is claimed on it beyond ``claims``."""
    requires: Requires = Requires()
    arch: tuple[str, ...] = ()
    emulates: bool = False
    """Whether its code also runs on the processor (setting ``emulate``)."""
    architectures: tuple[str, ...] = ()
    checkpoint: str | None = None
    """Folder inside the package with a small checkpoint of this model, if the distribution ships one."""
    commands: tuple[CommandTable, ...] = ()

    def claims_for(self, arch: str) -> frozenset[str]:
        """What is claimed on ``arch``; on one that is not known (empty), what is claimed on all."""
        return self.claims | self.claims_on.get(arch, frozenset())


@frozen
class ContractTable:
    """``[contracts.NAME]``: how many leading fields of a C record the plugin's compiled code reads."""

    fields: int
    chain: str
    chains: tuple[str, ...] = ()
    """Prefix hash after each field, if the manifest gives them; the last one is ``chain``."""


@frozen
class Manifest:
    """A whole ``deepinfer.toml``."""

    path: Path
    sha256: str
    api: str
    tables: Mapping[tuple[str, str], PluginTable]
    contracts: Mapping[str, ContractTable] = field(factory=dict)


def read_manifest(value: str) -> Manifest:
    """The manifest that an entry of group ``deepinfer.manifest`` names.

    :param value: ``<top package>:<file>``, e.g. ``deepinfer_acme:deepinfer.toml``.
    :raises ManifestError: for anything wrong; ``what`` says what and where.
    """
    package, filename, problem = split_manifest_value(value)
    if problem:
        raise ManifestError(problem)
    folders = package_folders(package)
    if not folders:
        raise ManifestError(f"package {package!r} is not importable here, or is a single module")
    path = next((folder / filename for folder in folders if (folder / filename).is_file()), None)
    if path is None:
        raise ManifestError(f"{filename} is missing in {folders[0]}")
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as exc:
        raise ManifestError(f"{filename} cannot be read: {exc.strerror or exc}") from exc
    return parse_manifest(data, path)


def split_manifest_value(value: str) -> tuple[str, str, str]:
    """Top package and file that an entry of group ``deepinfer.manifest`` names, and what is wrong with it."""
    package, _, filename = (part.strip() for part in value.partition(":"))
    if not package or not filename or "/" in filename or "\\" in filename:
        return package, filename, f"entry point value {value!r} is not <top package>:<file>"
    if "." in package:
        return package, filename, f"the manifest is in {package!r}; it must be in a top-level package"
    return package, filename, ""


def parse_manifest(data: bytes, path: Path) -> Manifest:
    """The manifest of this text. Raises ManifestError: ``what`` is the first problem, ``reason`` has the others."""
    manifest, problems = check_manifest(data, path)
    if problems:
        others = f"also: {'; '.join(problems[1:])}" if len(problems) > 1 else ""
        raise ManifestError(problems[0], reason=others, details={"problems": problems})
    return manifest


def check_manifest(data: bytes, path: Path) -> tuple[Manifest, list[str]]:
    """What can be read of a manifest's text, and every problem in it, each with table and key."""
    digest = hashlib.sha256(data).hexdigest()
    nothing = Manifest(path, digest, "", {})
    if len(data) > MAX_BYTES:
        return nothing, [f"{path.name} is larger than {MAX_BYTES} bytes"]
    try:
        top = tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as exc:
        return nothing, [f"{path.name} is not TOML: {exc}"]
    reader = _Reader(path.name)
    return reader.manifest(top, path, digest), reader.problems


class _Reader:
    """One pass over a manifest. What is wrong is noted and left out, so that one pass finds everything."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[str] = []

    def manifest(self, top: Mapping[str, Any], path: Path, digest: str) -> Manifest:
        self._only(top, TOP_KEYS, self.file)
        if top.get("schema") != 1 or isinstance(top["schema"], bool):
            self._note(f"{self.file}: schema must be 1, got {top.get('schema')!r}")
        api = self._text(top, "api", self.file)
        contracts = self._contracts(top.get("contracts", {}))
        tables: dict[tuple[str, str], PluginTable] = {}
        for kind in KINDS:
            for raw in self._tables(top, kind):
                table = self._plugin(kind, raw)
                if table is None:
                    continue
                if (kind, table.name) in tables:
                    self._note(f"{self.file}: two [[{kind}]] tables are named {table.name!r}")
                tables[kind, table.name] = table
        owners: dict[str, str] = {}
        for table in tables.values():
            for command in table.commands:
                if command.name in owners:
                    self._note(
                        f"{self.file}: {owners[command.name]} and {table.name} both have command {command.name!r}"
                    )
                owners[command.name] = table.name
        return Manifest(path, digest, api, tables, contracts)

    def _tables(self, top: Mapping[str, Any], kind: str) -> list[Mapping[str, Any]]:
        raw = top.get(kind, [])
        if isinstance(raw, list) and all(isinstance(item, dict) for item in raw):
            return raw
        self._note(f"{self.file}: write [[{kind}]], one table for each {kind}")
        return []

    def _plugin(self, kind: str, raw: Mapping[str, Any]) -> PluginTable | None:
        name = raw.get("name")
        if not isinstance(name, str) or not NAME.fullmatch(name):
            self._note(f"{self.file}: [[{kind}]] needs a name of the form [a-z][a-z0-9_]*, got {name!r}")
            return None
        where = f"{self.file}: {kind} {name!r}"
        self._only(raw, plugin_keys(kind), where)
        claims = self._texts(raw, "claims", where)
        self._claims(claims, where)
        arches = self._texts(raw, "arch", where)
        architectures = self._texts(raw, "architectures", where)
        if kind == "model" and not architectures:
            self._note(f"{where}: architectures must name at least one architecture")
        return PluginTable(
            kind=kind,
            name=name,
            summary=self._text(raw, "summary", where) if "summary" in raw else "",
            claims=frozenset(claims),
            claims_on=self._claims_on(raw.get("claims_on", {}), claims, arches, where),
            requires=self._requires(raw.get("requires", {}), where),
            arch=arches,
            emulates=self._emulates(raw, where),
            architectures=architectures,
            checkpoint=self._checkpoint(raw, where),
            commands=self._commands(raw.get("commands", []), where),
        )

    def _emulates(self, raw: Mapping[str, Any], where: str) -> bool:
        value = raw.get("emulates", False)
        if not isinstance(value, bool):
            self._note(f"{where}: emulates must be true or false, got {value!r}")
        return value is True

    def _claims(self, claims: Sequence[str], where: str) -> None:
        if not claims:
            return
        from deepinfer_core.plugins.claims import unknown_claim  # 40 ms of contracts, only if something is claimed

        self.problems += [f"{where}: {problem}" for problem in map(unknown_claim, claims) if problem]

    def _claims_on(
        self, raw: object, claims: Sequence[str], arches: Sequence[str], where: str
    ) -> dict[str, frozenset[str]]:
        if not isinstance(raw, dict):
            self._note(f"{where}: claims_on must be a table")
            return {}
        inner = f"{where}: claims_on"
        for arch in raw:
            if arch not in arches:
                self._note(f"{inner}: {arch!r} is not in arch{did_you_mean(arch, arches)}")
        found = {arch: self._texts(raw, arch, inner) for arch in raw}
        for arch, names in found.items():
            self._claims(names, f"{inner}: {arch}")
            twice = sorted(set(names) & set(claims))
            if twice:
                self._note(f"{inner}: {arch}: {', '.join(twice)} is in claims, and so claimed on every architecture")
        return {arch: frozenset(names) for arch, names in found.items()}

    def _requires(self, raw: object, where: str) -> Requires:
        if not isinstance(raw, dict):
            self._note(f"{where}: requires must be a table")
            return Requires()
        self._only(raw, REQUIRES_KEYS, f"{where}: requires")
        return Requires(**{key.name: self._texts(raw, key.name, f"{where}: requires") for key in REQUIRES_KEYS})

    def _checkpoint(self, raw: Mapping[str, Any], where: str) -> str | None:
        if "checkpoint" not in raw:
            return None
        checkpoint = self._text(raw, "checkpoint", where)
        if Path(checkpoint).is_absolute() or ".." in Path(checkpoint).parts:
            self._note(f"{where}: checkpoint must be a path inside the package, got {checkpoint!r}")
        return checkpoint

    def _commands(self, raw: object, where: str) -> tuple[CommandTable, ...]:
        if not isinstance(raw, list) or not all(isinstance(item, dict) for item in raw):
            self._note(f"{where}: write [[{where.split()[1]}.commands]], one table for each command")
            return ()
        found: dict[str, CommandTable] = {}
        for item in raw:
            name = item.get("name")
            if not isinstance(name, str) or not COMMAND.fullmatch(name):
                self._note(f"{where}: a command needs a name of the form [a-z][a-z0-9_-]*, got {name!r}")
                continue
            inner = f"{where}: command {name!r}"
            self._only(item, COMMAND_KEYS, inner)
            if name in found:
                self._note(f"{where}: two commands are named {name!r}")
            found[name] = CommandTable(name, self._text(item, "summary", inner))
        return tuple(found.values())

    def _contracts(self, raw: object) -> dict[str, ContractTable]:
        if not isinstance(raw, dict):
            self._note(f"{self.file}: write [contracts.NAME], one table for each record")
            return {}
        result: dict[str, ContractTable] = {}
        for record, table in raw.items():
            where = f"{self.file}: contracts.{record}"
            if not isinstance(table, dict):
                self._note(f"{where} must be a table")
                continue
            self._only(table, CONTRACT_KEYS, where)
            fields, chain = table.get("fields"), table.get("chain")
            if not isinstance(fields, int) or isinstance(fields, bool) or not 0 <= fields <= 1024:
                self._note(f"{where}: fields must be an integer from 0 to 1024, got {fields!r}")
            elif not isinstance(chain, str) or not _CHAIN.fullmatch(chain):
                self._note(f"{where}: chain must be 16 hexadecimal digits, got {chain!r}")
            else:
                result[record] = ContractTable(fields, chain, self._chains(table, fields, chain, where))
        return result

    def _chains(self, table: Mapping[str, Any], fields: int, chain: str, where: str) -> tuple[str, ...]:
        chains = self._texts(table, "chains", where)
        if chains and (len(chains) != fields or chains[-1] != chain or not all(map(_CHAIN.fullmatch, chains))):
            self._note(f"{where}: chains must be {fields} times 16 hexadecimal digits, the last ones {chain}")
        return chains

    def _only(self, table: Mapping[str, Any], keys: Sequence[Key], where: str) -> None:
        allowed = [key.name for key in keys]
        for key in table:
            if key not in allowed:
                self._note(f"{where}: unknown key {key!r}{did_you_mean(key, allowed)}")

    def _text(self, table: Mapping[str, Any], key: str, where: str) -> str:
        value = table.get(key)
        if isinstance(value, str) and value:
            return value
        self._note(f"{where}: {key} must be a text, got {value!r}")
        return ""

    def _texts(self, table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
        value = table.get(key, [])
        if isinstance(value, list) and all(isinstance(item, str) and item for item in value):
            return tuple(value)
        self._note(f"{where}: {key} must be a list of texts, got {value!r}")
        return ()

    def _note(self, problem: str) -> None:
        self.problems.append(problem)
