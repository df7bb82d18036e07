"""Every rule of a contract, typed and taken apart into guards, form and body."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from generator import lang
from generator.expr import FORMS, Expr, witness_of
from generator.resolve import Scope
from generator.schema import Contract, Field, Schema, SchemaError


@frozen
class Rule:
    """A check ready to emit: ``form`` is all, true, unique, injective or disjoint."""

    field: Field
    text: str
    full: bool
    form: str
    guards: tuple[Expr, ...]
    body: tuple[Expr, ...]
    witness: Expr

    @property
    def exprs(self) -> Iterator[Expr]:
        for e in (*self.guards, *self.body):
            yield from e.walk()

    @property
    def arrays(self) -> list[tuple[str, str]]:
        """(owner, field) of every array read, in order of first use."""
        return list(dict.fromkeys((e.owner, e.name) for e in self.exprs if e.op == "field"))

    @property
    def only_scalars(self) -> bool:
        return not any(e.op in ("field", "dim") for e in self.exprs)

    @property
    def is_about_elements(self) -> bool:
        """True of arrays if it was true of them before: nothing but elements of the record's arrays, constants and
        limits is read, so that neither another length nor another scalar changes the answer."""
        others = {"scalar", "dim", "key", "present", "slice", "diff", "shift", "gather", "cumsum", "repeat", "ramp"}
        others |= {"arange", "sum", "min", "max", "any", "len", "item"}
        if self.form != "all" or self.full or self.field.per or any(owner for owner, _ in self.arrays):
            return False
        return bool(self.arrays) and not any(e.op in others for e in self.exprs)


def rules_of(schema: Schema, contract: Contract) -> list[Rule]:
    """Every check of a contract in order, its base's first; enum membership comes first for each field."""
    out: list[Rule] = []
    for f in contract.all_fields:
        scope = Scope(schema, contract, f)
        texts = [(_enum_check(schema, f), False)] if f.enum else []
        for text, full in [*texts, *((c.text, c.full) for c in f.checks)]:
            out.append(_rule(scope, f, text, full))
    return out


def _rule(scope: Scope, field: Field, text: str, full: bool) -> Rule:
    e = scope.expression(text)
    guards: list[Expr] = []
    while e.op == "implies" and not e.args[0].vector and (e.args[1].op in FORMS or not e.vector):
        guards.append(e.args[0])
        e = e.args[1]
    form, body = (e.op, e.args) if e.op in FORMS else ("true", (e,))
    top = lang.Num(0, 0)
    if form == "true" and (e.vector or e.kind != "bool"):
        raise scope.error(top, f"a check is a condition; this is a {'vector' if e.vector else e.kind}")
    for part in body:
        for x in part.walk():
            if x.op in FORMS:
                raise scope.error(top, f"{x.op}(...) must be the whole check, or the right side of implies")
    witness = witness_of(body[0], field.name) if form in ("all", "true") else body[0]
    return Rule(field, text, full, form, tuple(guards), body, witness)


def _enum_check(schema: Schema, f: Field) -> str:
    values = schema.enums[f.enum].values.values()
    subject = f"{f.name}[{'r' if f.per == 'ratio' else 'j'}]" if f.per else f.name
    if schema.enums[f.enum].flags:
        known = 0
        for v in values:
            known |= v
        text = f"({subject} & {known}) == {subject}"
    else:
        if sorted(values) != list(range(min(values), max(values) + 1)):
            raise SchemaError(f"enums.toml: {f.enum}: values of an enum that a field uses must have no gap")
        text = (
            f"{subject} <= {max(values)}" if f.dtype.startswith("u") else f"{min(values)} <= {subject} <= {max(values)}"
        )
    return f"all({text})" if f.is_array else text
