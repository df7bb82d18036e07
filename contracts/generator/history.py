"""Released chains (`history/<version>.json`): within a major version a schema only appends."""

from __future__ import annotations

import json
from pathlib import Path

from generator.schema import Schema, SchemaError


def snapshot(schema: Schema, version: str) -> str:
    """The text of ``history/<version>.json``."""
    data = {
        "version": version,
        "contracts": {
            c.name: {
                "version": c.version,
                "semantic_hash": c.semantic_hash,
                "fields": [[n, d] for n, d in c.links],
                "chain": [f"{h:016x}" for h in c.chain],
            }
            for c in schema.contracts
        },
        "enums": {e.name: dict(e.values) for e in schema.enums.values()},
    }
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def check(schema: Schema, folder: Path) -> None:
    """Raises SchemaError naming the first field (or enum member) that differs from a release of the same major."""
    for path in sorted(folder.glob("*.json")):
        old = json.loads(path.read_text(encoding="utf-8"))
        for name, record in old["contracts"].items():
            _record(schema, path.name, name, record)
        for name, values in old["enums"].items():
            now = schema.enums[name].values if name in schema.enums else {}
            for member, value in values.items():
                if now.get(member) != value:
                    raise SchemaError(
                        f"{path.name}: {name}.{member} was released as {value} and is now {now.get(member, 'gone')}"
                    )


def _record(schema: Schema, file: str, name: str, old: dict[str, object]) -> None:
    found = [c for c in schema.contracts if c.name == name]
    if not found:
        raise SchemaError(f"{file}: the released contract {name} is gone")
    c = found[0]
    if c.major != int(str(old["version"]).split(".")[0]):
        return  # a new major starts a new chain
    fields = [tuple(f) for f in old["fields"]]  # type: ignore[attr-defined]
    for i, (was, now) in enumerate(zip(fields, c.links, strict=False)):
        if was != now:
            raise SchemaError(
                f"{file}: {name} differs at field {i}, {was[0]}: released {was[0]} {was[1]}, now {now[0]} {now[1]};"
                f" append fields, or raise the major version of {c.file}.toml"
            )
    if len(c.links) < len(fields):
        gone = fields[len(c.links)][0]
        raise SchemaError(
            f"{file}: {name}: the released field {len(c.links)}, {gone}, is gone; raise the major version"
        )
    chain = old["chain"]
    if f"{c.chain[len(fields)]:016x}" != chain[-1]:  # type: ignore[index]
        raise SchemaError(f"{file}: {name}: the recorded chain does not belong to its fields; the file was edited")
