"""`_validators.py`: the rules as tables of small lambdas over an evaluation environment (`_evaluate.Env`)."""

from __future__ import annotations

from generator.emit_c import BANNER
from generator.expr import Expr
from generator.presence import presence_of
from generator.resolve import Scope
from generator.rules import Rule, rules_of
from generator.schema import Contract, Field, Schema

METHODS = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "//": "floordiv",
    "%": "mod",
    "&": "bitand",
    "<": "lt",
    "<=": "le",
    "==": "eq",
    "!=": "ne",
    ">=": "ge",
    ">": "gt",
    "and": "both",
    "or": "either",
    "implies": "implies",
    "not": "invert",
    "neg": "neg",
    "len": "size",
}


def expression(e: Expr) -> str:
    """Python text of an expression over an environment named ``e``."""
    match e.op:
        case "const":
            return repr(e.number)
        case "key":
            return f"e.{e.name}"
        case "limit":
            return f"e.limits.{e.name}"
        case "dim":
            return f"e.dim({e.name!r})"
        case "scalar":
            return f"e.scalar({e.name!r}{', step=True' if e.owner else ''})"
        case "present":
            return f"e.present({e.name!r})"
        case "field":
            column = f", column={e.column}" if e.column >= 0 else ""
            return f"e.array({e.name!r}{column}{', step=True' if e.owner else ''})"
        case "slice":
            return f"e.slice({expression(e.args[0])}, {e.low}, {e.high})"
    args = ", ".join(expression(a) for a in e.args)
    return f"e.{METHODS.get(e.op, e.op)}({args})"


def _lambda(e: Expr) -> str:
    return f"lambda e: {expression(e)}"


def _tuple(items: list[str]) -> str:
    return "(" + "".join(f"{i}, " for i in items).rstrip() + ")"


def _shape(schema: Schema, c: Contract, f: Field, shape: tuple[str, ...] | None) -> str:
    if shape is None:
        return "None"
    rows = []
    for text in shape:
        dim = c.all_dims.get(text)
        if dim is not None and dim.value == "free":
            rows.append(f"({text!r}, None)")
        else:
            rows.append(f"({text!r}, {_lambda(Scope(schema, c, f).expression(text))})")
    return _tuple(rows)


def _field(schema: Schema, c: Contract, f: Field) -> str:
    presence = []
    for a in presence_of(schema, c, f):
        caps = [_lambda(Scope(schema, c, None).expression(schema.presence[n])) for n in a.caps]
        presence.append(f"({a.phase!r}, {_tuple(caps)}, {a.optional})")
    return (
        f"        FieldSpec({f.name!r}, {f.dtype!r}, {f.count!r}, {f.per!r}, {f.ratios!r}, {f.presence!r},\n"
        f"            {_tuple(presence)},\n"
        f"            {_shape(schema, c, f, f.shape)},\n"
        f"            {_shape(schema, c, f, f.decode_shape)}),\n"
    )


def _rule(i: int, r: Rule) -> str:
    arrays = _tuple([f"({owner == 'step'}, {name!r})" for owner, name in r.arrays])
    step = any(e.owner == "step" for e in r.exprs)
    return (
        f"        RuleSpec({i}, {r.field.name!r}, {r.text!r}, {r.full},\n"
        f"            {r.form!r}, {r.field.per!r}, {r.field.ratios!r}, {arrays}, {step}, {r.only_scalars},\n"
        f"            {_tuple([_lambda(g) for g in r.guards])},\n"
        f"            {_tuple([_lambda(b) for b in r.body])},\n"
        f"            {_lambda(r.witness)}),\n"
    )


def _contract(schema: Schema, c: Contract) -> str:
    dims = ""
    for d in c.all_dims.values():
        value = "None"
        if d.value != "free":
            keyed = Field(name="dim", dtype="i32", doc="", per="ratio") if d.name.endswith("(r)") else None
            value = _lambda(Scope(schema, c, keyed).expression(d.value))
        dims += f"        {d.name!r}: {value},\n"
    phase = _lambda(Scope(schema, c, None).expression(c.phase_rule)) if c.phase_rule else "None"
    fields = "".join(_field(schema, c, f) for f in c.all_fields)
    rules = "".join(_rule(i, r) for i, r in enumerate(rules_of(schema, c)))
    return (
        f"    {c.name!r}: ContractSpec(\n      name={c.name!r},\n"
        f"      prefill={phase},\n      dims={{\n{dims}      }},\n"
        f"      fields=(\n{fields}      ),\n      rules=(\n{rules}      ),\n    ),\n"
    )


def validators(schema: Schema) -> str:
    body = "".join(_contract(schema, c) for c in schema.contracts)
    return f'''# {BANNER}
# ruff: noqa
# fmt: off

"""The checks of the schemas for numpy records. `_evaluate.py` gives the operations their meaning."""

from __future__ import annotations

from collections.abc import Mapping

from deepinfer_contracts._evaluate import ContractSpec, FieldSpec, RuleSpec

SPECS: Mapping[str, ContractSpec] = {{
{body}}}
'''
