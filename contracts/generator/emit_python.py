"""`_records.py`, `_enums.py`, `_chains.py`, `_ops.py`: the Python side of the schemas."""

from __future__ import annotations

from generator.emit_c import BANNER
from generator.schema import DTYPES, Contract, Field, Schema

_SCALAR = {"bool": "bool", "f32": "float", "f64": "float", "handle": "Any"}
_HEAD = f"# {BANNER}\n# ruff: noqa\n# fmt: off\n"


def enums(schema: Schema) -> str:
    out = [_HEAD, '"""Enumerations of the contracts (`schema/enums.toml`)."""\n', "from enum import IntEnum, IntFlag\n"]
    for e in schema.enums.values():
        kind = "IntFlag" if e.flags else "IntEnum"
        rows = "\n".join(f"    {k} = {v}" for k, v in e.values.items())
        out.append(f'\nclass {e.name}({kind}):\n    """{e.doc}"""\n\n{rows}\n')
    names = ", ".join(f'"{n}"' for n in schema.enums)
    out.append(f"\n__all__ = [{names}]\n")
    return "\n".join(out)


def _annotation(f: Field) -> tuple[str, str]:
    """(type, default) of a field."""
    scalar = _SCALAR.get(f.dtype, "int")
    if f.is_array:
        if f.per == "ratio":
            return "dict[int, Array] | None", "None"
        if f.per == "draft_step":
            return "list[Array | None] | None", "None"
        return "Array", "None"
    if f.per:
        return f"dict[int, {scalar}] | None", "None"
    return scalar, {"bool": "False", "float": "0.0", "Any": "None"}.get(scalar, "0")


def _record(c: Contract) -> str:
    base = c.base.name if c.base else "Record"
    rows = []
    for f in c.fields:
        kind, default = _annotation(f)
        note = f.definition + ("" if f.presence == "always" else f", {f.presence}")
        rows.append(f"    {f.name}: {kind} = {default}  # {note}: {f.doc}")
    names = ", ".join(f'"{f.name}"' for f in c.all_fields)
    body = "\n".join(rows)
    return f'''
@define(eq=False)
class {c.name}({base}):
    """{c.doc}"""

    CONTRACT: ClassVar[str] = "{c.name}"
    CHAIN: ClassVar[int] = 0x{c.chain[-1]:016x}
    FIELDS: ClassVar[tuple[str, ...]] = ({names},)

{body}
'''


def records(schema: Schema) -> str:
    limits = []
    for x in schema.limits:
        kind, default = ("tuple[int, ...]", "()") if x.tuple else ("int", str(x.default))
        limits.append(f"    {x.name}: {kind} = {default}  # {x.symbol + ': ' if x.symbol else ''}{x.doc}")
    body = "\n".join(limits)
    return f'''{_HEAD}
"""Contract records: one attrs class each, a keyword for every field. An absent array is None.

Arrays are numpy on the host and whatever the backend binds them to on a device. Fields per ratio are dicts keyed by the
ratio, fields per draft step are lists. The C envelope (struct_size, chain) has no attribute; CHAIN is its chain.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

from attrs import define, frozen

from deepinfer_contracts._record import Record

Array: TypeAlias = Any


@frozen
class Limits:
    """The configuration that shapes and checks refer to (`di_limits` in C)."""

{body}

{"".join(_record(c) + chr(10) for c in schema.contracts)}'''


def chains(schema: Schema) -> str:
    infos = []
    for c in schema.contracts:
        links = "".join(f'        ("{n}", "{d}"),\n' for n, d in c.links)
        chain = "".join(f"        0x{h:016x},\n" for h in c.chain)
        infos.append(
            f'    "{c.name}": ContractInfo(\n        name="{c.name}", version="{c.version}", struct="{c.struct}",\n'
            f'        semantic_hash="{c.semantic_hash}",\n'
            f"        fields=(\n{links}        ),\n        chain=(\n{chain}        ),\n    ),\n"
        )
    dtypes = "".join(f'    "{n}": ("{np}", {size}),\n' for n, (_, size, np) in DTYPES.items())
    return f'''{_HEAD}
"""Hash chains and field definitions of every record; chain[n] is the prefix hash of the first n fields."""

from __future__ import annotations

from collections.abc import Mapping

from deepinfer_contracts._compat import ContractInfo

CONTRACTS: Mapping[str, ContractInfo] = {{
{"".join(infos)}}}

# dtype of the schemas -> (numpy name, bytes)
DTYPES: Mapping[str, tuple[str, int]] = {{
{dtypes}}}
'''


def ops(schema: Schema) -> str:
    rows = "".join(
        f"    {o.id!r}: Op(id={o.id!r}, required={o.required}, group={o.group!r}, default={o.default!r},\n"
        f"        signature={o.signature!r},\n        tolerance={o.tolerance!r},\n        doc={o.doc!r}),\n"
        for o in schema.ops
    )
    features = "".join(f'    "{f["name"]}": {f["doc"]!r},\n' for f in schema.capabilities["feature"])
    formats = "".join(f'    "{k}": {tuple(v)!r},\n' for k, v in schema.capabilities["formats"].items())
    return f'''{_HEAD}
"""Op table (`schema/ops.toml`) and the names a manifest may claim (`schema/capabilities.toml`)."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen


@frozen
class Op:
    """One backend op: its id, whether a backend must have it, who fills it in otherwise, signature and tolerance."""

    id: str
    required: bool
    group: str
    default: str
    signature: str
    tolerance: str
    doc: str


OPS: Mapping[str, Op] = {{
{rows}}}

FEATURES: Mapping[str, str] = {{
{features}}}

CACHE_FORMATS: Mapping[str, tuple[str, ...]] = {{
{formats}}}

CLAIMS: frozenset[str] = frozenset(
    [f"feature:{{name}}" for name in FEATURES]
    + [f"kv:{{name}}" for kind in CACHE_FORMATS for name in CACHE_FORMATS[kind]]
    + [f"op:{{op.id}}" for op in OPS.values() if not op.required]
)
"""Every claim that a manifest may make; required ops are not claimed."""
'''
