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
from deepinfer_core.settings import did_you_mean

MAX_BYTES = 256 << 10
NAME = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)
KINDS = ("backend", "model", "sampler", "grammar", "logits_filter", "extension")
_COMMON_KEYS = ("name", "summary", "claims", "requires")
_KIND_KEYS = {"backend": ("arch",), "model": ("architectures", "checkpoint")}
_REQUIRES_KEYS = ("os", "machine", "any_path", "modules")
_CHAIN = re.compile(r"[0-9a-f]{16}", re.ASCII)


@frozen
class Requires:
    """What must hold on the host before a backend is probed under ``auto``. Empty: nothing."""

    os: tuple[str, ...] = ()
    machine: tuple[str, ...] = ()
    any_path: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


@frozen
class PluginTable:
    """One ``[[backend]]``, ``[[model]]``, ... table."""

    kind: str
    name: str
    summary: str = ""
    claims: frozenset[str] = frozenset()
    requires: Requires = Requires()
    arch: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    checkpoint: str | None = None
    """Folder inside the package with a small checkpoint of this model, if the distribution ships one."""


@frozen
class ContractTable:
    """``[contracts.NAME]``: how many leading fields of a C record the plugin's compiled code reads."""

    fields: int
    chain: str


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
    package, _, filename = (part.strip() for part in value.partition(":"))
    if not package or not filename or "/" in filename or "\\" in filename:
        raise ManifestError(f"entry point value {value!r} is not <top package>:<file>")
    if "." in package:
        raise ManifestError(f"the manifest is in {package!r}; it must be in a top-level package")
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


def parse_manifest(data: bytes, path: Path) -> Manifest:
    """Check the text of a manifest. Raises ManifestError, naming table and key."""
    if len(data) > MAX_BYTES:
        raise ManifestError(f"{path.name} is larger than {MAX_BYTES} bytes")
    try:
        top = tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ManifestError(f"{path.name} is not TOML: {exc}") from exc
    _only(top, ("schema", "api", "contracts", *KINDS), path.name)
    if top.get("schema") != 1 or isinstance(top["schema"], bool):
        raise ManifestError(f"{path.name}: schema must be 1, got {top.get('schema')!r}")
    tables: dict[tuple[str, str], PluginTable] = {}
    for kind in KINDS:
        raw_tables = top.get(kind, [])
        if not isinstance(raw_tables, list) or not all(isinstance(item, dict) for item in raw_tables):
            raise ManifestError(f"{path.name}: write [[{kind}]], one table for each {kind}")
        for raw in raw_tables:
            table = _plugin_table(kind, raw, path.name)
            if (kind, table.name) in tables:
                raise ManifestError(f"{path.name}: two [[{kind}]] tables are named {table.name!r}")
            tables[kind, table.name] = table
    return Manifest(
        path=path,
        sha256=hashlib.sha256(data).hexdigest(),
        api=_text(top, "api", path.name),
        tables=tables,
        contracts=_contracts(top.get("contracts", {}), path.name),
    )


def _plugin_table(kind: str, raw: Mapping[str, Any], file: str) -> PluginTable:
    name = raw.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ManifestError(f"{file}: [[{kind}]] needs a name of the form [a-z][a-z0-9_]*, got {name!r}")
    where = f"{file}: {kind} {name!r}"
    _only(raw, (*_COMMON_KEYS, *_KIND_KEYS.get(kind, ())), where)
    claims = _texts(raw, "claims", where)
    _check_claims(claims, where)
    requires = raw.get("requires", {})
    if not isinstance(requires, dict):
        raise ManifestError(f"{where}: requires must be a table")
    _only(requires, _REQUIRES_KEYS, f"{where}: requires")
    checkpoint = _text(raw, "checkpoint", where) if "checkpoint" in raw else None
    if checkpoint is not None and (Path(checkpoint).is_absolute() or ".." in Path(checkpoint).parts):
        raise ManifestError(f"{where}: checkpoint must be a path inside the package, got {checkpoint!r}")
    if kind == "model" and not _texts(raw, "architectures", where):
        raise ManifestError(f"{where}: architectures must name at least one architecture")
    return PluginTable(
        kind=kind,
        name=name,
        summary=_text(raw, "summary", where) if "summary" in raw else "",
        claims=frozenset(claims),
        requires=Requires(**{key: _texts(requires, key, f"{where}: requires") for key in _REQUIRES_KEYS}),
        arch=_texts(raw, "arch", where),
        architectures=_texts(raw, "architectures", where),
        checkpoint=checkpoint,
    )


def _check_claims(claims: Sequence[str], where: str) -> None:
    if not claims:
        return
    from deepinfer_core.plugins.claims import unknown_claim  # 40 ms of contracts, only if something is claimed

    for claim in claims:
        problem = unknown_claim(claim)
        if problem:
            raise ManifestError(f"{where}: {problem}")


def _contracts(raw: object, file: str) -> dict[str, ContractTable]:
    if not isinstance(raw, dict):
        raise ManifestError(f"{file}: write [contracts.NAME], one table for each record")
    result: dict[str, ContractTable] = {}
    for record, table in raw.items():
        where = f"{file}: contracts.{record}"
        if not isinstance(table, dict):
            raise ManifestError(f"{where} must be a table")
        _only(table, ("fields", "chain"), where)
        fields, chain = table.get("fields"), table.get("chain")
        if not isinstance(fields, int) or isinstance(fields, bool) or not 0 <= fields <= 1024:
            raise ManifestError(f"{where}: fields must be an integer from 0 to 1024, got {fields!r}")
        if not isinstance(chain, str) or not _CHAIN.fullmatch(chain):
            raise ManifestError(f"{where}: chain must be 16 hexadecimal digits, got {chain!r}")
        result[record] = ContractTable(fields, chain)
    return result


def _only(table: Mapping[str, Any], allowed: Sequence[str], where: str) -> None:
    for key in table:
        if key not in allowed:
            raise ManifestError(f"{where}: unknown key {key!r}{did_you_mean(key, allowed)}")


def _text(table: Mapping[str, Any], key: str, where: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value:
        raise ManifestError(f"{where}: {key} must be a text, got {value!r}")
    return value


def _texts(table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise ManifestError(f"{where}: {key} must be a list of texts, got {value!r}")
    return tuple(value)
