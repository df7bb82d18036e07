"""Reading `schema/*.toml` into `generator.schema`, refusing what is malformed with file and field in the message."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from generator.chains import chain_of
from generator.schema import DTYPES, ENVELOPE, Check, Contract, Dim, Enum, Field, Limit, Op, Schema, SchemaError

# Order is identity: a contract's position is its number in `di_error.contract`.
CONTRACT_FILES = (
    "scheduler_outputs",
    "input_metadata",
    "input_metadata_v41",
    "sampler_inputs",
    "sampler_output",
    "event_batch",
)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as exc:
        raise SchemaError(f"{path.name}: {exc}") from exc


def _only(table: Mapping[str, Any], allowed: set[str], where: str) -> None:
    unknown = sorted(set(table) - allowed)
    if unknown:
        raise SchemaError(f"{where}: unknown key {unknown[0]!r}; known: {', '.join(sorted(allowed))}")


_FIELD_KEYS = {
    "name",
    "dtype",
    "shape",
    "per",
    "ratios",
    "presence",
    "space",
    "enum",
    "since",
    "lifetime",
    "doc",
    "checks",
    "checks_full",
}
_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")


def _field(raw: Mapping[str, Any], where: str, lifetime: str, enums: Mapping[str, Enum]) -> Field:
    name = raw.get("name", "")
    if not isinstance(name, str) or not _NAME.match(name):
        raise SchemaError(f"{where}: field name {name!r} is not a lower-case identifier")
    where = f"{where}: {name}"
    _only(raw, _FIELD_KEYS, where)
    if raw.get("dtype") not in DTYPES:
        raise SchemaError(f"{where}: dtype {raw.get('dtype')!r}; known: {', '.join(DTYPES)}")
    if not raw.get("doc"):
        raise SchemaError(f"{where}: doc is missing")
    if raw.get("enum", "") and raw["enum"] not in enums:
        raise SchemaError(f"{where}: no enum {raw['enum']!r} in enums.toml")
    per = raw.get("per", "")
    if per not in ("", "ratio", "draft_step"):
        raise SchemaError(f"{where}: per is {per!r}, expected 'ratio' or 'draft_step'")
    if raw.get("ratios", "all") not in ("all", "sparse", "dense"):
        raise SchemaError(f"{where}: ratios is {raw['ratios']!r}, expected all, sparse or dense")
    if raw.get("space", "host") not in ("host", "device", "host|device"):
        raise SchemaError(f"{where}: space is {raw['space']!r}, expected host, device or host|device")
    shape = raw.get("shape")
    decode = None
    if isinstance(shape, dict):
        _only(shape, {"prefill", "decode"}, f"{where}: shape")
        shape, decode = shape["prefill"], tuple(shape["decode"])
    if shape is not None and not 1 <= len(shape) <= 4:
        raise SchemaError(f"{where}: shape has {len(shape)} dimensions, expected 1 to 4")
    checks = [Check(t, False) for t in raw.get("checks", ())] + [Check(t, True) for t in raw.get("checks_full", ())]
    return Field(
        name=name,
        dtype=raw["dtype"],
        doc=raw["doc"],
        shape=None if shape is None else tuple(shape),
        decode_shape=decode,
        per=per,
        ratios=raw.get("ratios", "all"),
        presence=raw.get("presence", "always"),
        space=raw.get("space", "host"),
        enum=raw.get("enum", ""),
        since=raw.get("since", "1.0"),
        lifetime=raw.get("lifetime", lifetime),
        checks=tuple(checks),
    )


def _semantic(contract: Contract, enums: Mapping[str, Enum], extra: object) -> str:
    """SHA-256 over canonical JSON of everything a reader relies on, documentation excepted."""
    data = {
        "name": contract.name,
        "version": contract.version,
        "base": contract.base.semantic_hash if contract.base else "",
        "context": contract.context,
        "prefill_when": contract.phase_rule,
        "dims": {d.name: d.value for d in contract.dims.values()},
        "fields": [
            {
                "name": f.name,
                "dtype": f.dtype,
                "count": f.count,
                "ratios": f.ratios,
                "presence": f.presence,
                "space": f.space,
                "lifetime": f.lifetime,
                "since": f.since,
                "enum": {f.enum: dict(enums[f.enum].values)} if f.enum else {},
                "checks": [[c.text, c.full] for c in f.checks],
            }
            for f in contract.fields
        ],
        "config": extra,
    }
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _contract(
    path: Path, index: int, done: Mapping[str, Contract], enums: Mapping[str, Enum], extra: object
) -> Contract:
    raw = _read(path)
    _only(raw, {"contract", "dims", "field"}, path.name)
    head = raw.get("contract", {})
    _only(head, {"name", "version", "extends", "context", "lifetime", "prefill_when", "doc"}, path.name)
    base = None
    if head.get("extends"):
        if head["extends"] not in done:
            raise SchemaError(f"{path.name}: extends {head['extends']!r}, which is not an earlier contract")
        base = done[head["extends"]]
    if not re.fullmatch(r"\d+\.\d+", head.get("version", "")):
        raise SchemaError(f"{path.name}: version {head.get('version')!r} is not major.minor")
    fields = [_field(f, path.name, head.get("lifetime", ""), enums) for f in raw.get("field", [])]
    seen = {n for n, _ in ENVELOPE} | {f.name for f in (base.all_fields if base else [])}
    for f in fields:
        if f.name in seen:
            raise SchemaError(f"{path.name}: {f.name}: the name is used twice")
        seen.add(f.name)
    dims = {n: Dim(n, d["value"], d.get("doc", "")) for n, d in raw.get("dims", {}).items()}
    contract = Contract(
        name=head["name"],
        file=path.stem,
        index=index,
        version=head["version"],
        lifetime=head.get("lifetime", ""),
        doc=head.get("doc", ""),
        fields=fields,
        dims=dims,
        base=base,
        context=head.get("context", ""),
        prefill_when=head.get("prefill_when", ""),
    )
    contract.chain = tuple(chain_of(contract.name, contract.major, contract.links))
    contract.semantic_hash = _semantic(contract, enums, extra)
    return contract


def _ops(path: Path) -> list[Op]:
    if not path.exists():
        return []
    out: list[Op] = []
    for raw in _read(path).get("op", []):
        if not re.fullmatch(r"[a-z]+(\.[a-z][a-z0-9_]*)+", raw.get("id", "")):
            raise SchemaError(f"{path.name}: op id {raw.get('id')!r} is not group.name")
        out.append(
            Op(
                id=raw["id"],
                required=bool(raw.get("required", True)),
                default=raw.get("default", ""),
                signature=" ".join(raw.get("signature", "").split()),
                tolerance=str(raw.get("tolerance", "")),
                doc=" ".join(raw.get("doc", "").split()),
            )
        )
    names = [o.id for o in out]
    for name in names:
        if names.count(name) > 1:
            raise SchemaError(f"{path.name}: op {name!r} is listed twice")
    return out


def load(folder: Path) -> Schema:
    """Read every schema below ``folder``. Raises SchemaError."""
    enums: dict[str, Enum] = {}
    for raw in _read(folder / "enums.toml")["enum"]:
        _only(raw, {"name", "prefix", "doc", "values", "flags", "open"}, f"enums.toml: {raw.get('name')}")
        enums[raw["name"]] = Enum(**raw)
    limits_raw = _read(folder / "limits.toml")
    limits = [Limit(**x) for x in limits_raw["limit"]]
    capabilities = _read(folder / "capabilities.toml")
    presence = {p["name"]: p["when"] for p in capabilities["presence"]}
    extra = {
        "limits": [[x.name, x.symbol, x.tuple] for x in limits],
        "capacity": limits_raw["capacity"],
        "presence": presence,
    }
    done: dict[str, Contract] = {}
    for i, name in enumerate(CONTRACT_FILES):
        c = _contract(folder / f"{name}.toml", i, done, enums, extra)
        done[c.name] = c
    for c in done.values():
        if c.context and c.context not in done:
            raise SchemaError(f"{c.file}.toml: context {c.context!r} is no contract")
    return Schema(
        contracts=list(done.values()),
        enums=enums,
        limits=limits,
        capacity=dict(limits_raw["capacity"]),
        presence=presence,
        capabilities=capabilities,
        ops=_ops(folder / "ops.toml"),
    )
