"""Names and types: turns a syntax tree into typed expressions that the numpy and C emitters share.

A value is a scalar or a vector, and bool, int or float. A vector is *random* (any element can be computed alone) or
*sequential* (`cumsum`, `repeat`, `ramp`: elements come in order); `diff`, `shift`, `gather`, slices and `unique` need a
random one.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve, frozen

from generator import lang
from generator.schema import Contract, Field, Schema, SchemaError


@frozen
class Expr:
    """``op`` names what it is; ``args`` are operands; ``ref``/``number`` say which field, limit or constant."""

    op: str
    kind: str = "int"  # bool, int, float
    vector: bool = False
    random: bool = True
    args: tuple[Expr, ...] = ()
    name: str = ""
    owner: str = ""  # "" or "step"
    column: int = -1
    number: int | float = 0
    low: int = 0
    high: int = 0  # elements cut from the end

    def walk(self) -> Iterator[Expr]:
        yield self
        for a in self.args:
            yield from a.walk()


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


_ARITHMETIC = ("+", "-", "*", "//", "%", "&")
_COMPARE = lang.COMPARISONS
_LOGIC = ("and", "or", "implies")
_FUNCTIONS = {
    "sum": 1,
    "min": 1,
    "max": 1,
    "any": 1,
    "len": 1,
    "all": 1,
    "unique": 1,
    "injective": 1,
    "disjoint": 2,
    "diff": 1,
    "cumsum": 1,
    "arange": 1,
    "repeat": 2,
    "ramp": 1,
    "gather": 2,
    "shift": 2,
    "where": 3,
    "minimum": 2,
    "maximum": 2,
    "align": 2,
    "finite": 1,
    "present": 1,
}
FORMS = ("all", "unique", "injective", "disjoint")


class Scope:
    """What names mean inside one contract, for one field (which fixes whether `r` or `j` exists)."""

    def __init__(self, schema: Schema, contract: Contract, field: Field | None) -> None:
        self.schema = schema
        self.contract = contract
        self.field = field
        self.fields = {f.name: f for f in contract.all_fields}
        self.dims = contract.all_dims
        self.limits = {x.name: x for x in schema.limits}
        self.context = schema.contract(contract.context) if contract.context else None
        if not contract.context and contract.base and contract.base.context:
            self.context = schema.contract(contract.base.context)
        self.text = ""

    def error(self, node: lang.Node, why: str) -> SchemaError:
        where = f"{self.contract.file}.toml: {self.field.name if self.field else 'contract'}"
        return SchemaError(f"{where}: {lang.fail(self.text, node.pos, why)}")

    def expression(self, text: str) -> Expr:
        self.text = text
        try:
            tree = lang.parse(text)
        except lang.CheckSyntaxError as exc:
            where = f"{self.contract.file}.toml: {self.field.name if self.field else 'contract'}"
            raise SchemaError(f"{where}: {exc}") from exc
        return self.resolve(tree)

    # --- names -------------------------------------------------------------------------------------------------

    def resolve(self, node: lang.Node) -> Expr:
        match node:
            case lang.Num(value=value):
                return Expr("const", "float" if isinstance(value, float) else "int", number=value)
            case lang.Name():
                return self._name(node)
            case lang.Attribute():
                return self._attribute(node)
            case lang.Unary():
                return self._unary(node)
            case lang.Binary():
                return self._binary(node)
            case lang.Column():
                return self._column(node)
            case lang.Subscript():
                return self._subscript(node)
            case lang.Slice():
                return self._slice(node)
            case lang.Call():
                return self._call(node)
        raise self.error(node, "unsupported expression")

    def _name(self, node: lang.Name, keyed: bool = False) -> Expr:
        name = node.name
        if name in self.fields:
            return self._field(node, self.fields[name], "", keyed)
        if name in ("r", "j"):
            per = {"r": "ratio", "j": "draft_step"}[name]
            if self.field is None or self.field.per != per:
                raise self.error(node, f"{name!r} exists only in checks of fields with per = {per!r}")
            return Expr("key", name=name)
        if name in self.dims:
            return Expr("dim", name=name)
        if name == "Q":
            return Expr("+", args=(Expr("limit", name="num_draft"), Expr("const", number=1)))
        limit = self.schema.symbols.get(name, name)
        if limit in self.limits and not self.limits[limit].tuple:
            return Expr("limit", name=limit)
        raise self.error(node, f"no field, dimension or limit named {name!r}")

    def _field(self, node: lang.Node, f: Field, owner: str, keyed: bool) -> Expr:
        if f.per and not keyed:
            key = "r" if f.per == "ratio" else "j"
            raise self.error(node, f"{f.name} has one entry per {f.per}: write {f.name}[{key}]")
        kind = {"f32": "float", "f64": "float", "bool": "bool"}.get(f.dtype, "int")
        if f.dtype == "handle":
            raise self.error(node, f"{f.name} is a handle and has no value")
        if f.is_array and f.device_only:
            raise self.error(node, f"{f.name} lives on the device; its values cannot be checked")
        return Expr("field" if f.is_array else "scalar", kind, vector=f.is_array, name=f.name, owner=owner)

    def _attribute(self, node: lang.Attribute) -> Expr:
        if node.owner == "step":
            if self.context is None:
                raise self.error(node, "this contract has no context: nothing to compare with")
            for f in self.context.all_fields:
                if f.name == node.name:
                    return self._field(node, f, "step", False)
            raise self.error(node, f"{self.context.name} has no field {node.name!r}")
        enum = self.schema.enums.get(node.owner)
        if enum is None:
            raise self.error(node, f"no enum named {node.owner!r}")
        if node.name not in enum.values:
            raise self.error(node, f"{node.owner} has no member {node.name!r}; it has {', '.join(enum.values)}")
        return Expr("const", number=enum.values[node.name])

    # --- operators ---------------------------------------------------------------------------------------------

    def _unary(self, node: lang.Unary) -> Expr:
        x = self.resolve(node.x)
        if node.op == "not":
            self._want(node, x, "bool")
            return Expr("not", "bool", x.vector, x.random, (x,))
        self._number(node, x)
        if x.op == "const":
            return evolve(x, number=-x.number)
        return Expr("neg", x.kind, x.vector, x.random, (x,))

    def _binary(self, node: lang.Binary) -> Expr:
        a, b = self.resolve(node.a), self.resolve(node.b)
        vector, random = a.vector or b.vector, a.random and b.random
        if node.op in _LOGIC:
            self._want(node, a, "bool")
            self._want(node, b, "bool")
            return Expr(node.op, "bool", vector, random, (a, b))
        if node.op in _COMPARE:
            if (a.kind == "bool") != (b.kind == "bool"):
                raise self.error(node, f"cannot compare {a.kind} with {b.kind}")
            return Expr(node.op, "bool", vector, random, (a, b))
        self._number(node, a)
        self._number(node, b)
        kind = "float" if "float" in (a.kind, b.kind) else "int"
        if kind == "float" and node.op in ("//", "%", "&"):
            raise self.error(node, f"{node.op!r} needs integers")
        return Expr(node.op, kind, vector, random, (a, b))

    def _want(self, node: lang.Node, x: Expr, kind: str) -> None:
        if x.kind != kind:
            raise self.error(node, f"expected {kind}, got {x.kind}")

    def _number(self, node: lang.Node, x: Expr) -> None:
        if x.kind == "bool":
            raise self.error(node, "expected a number, got bool")

    def _need_vector(self, node: lang.Node, x: Expr, random: bool = False) -> None:
        if not x.vector:
            raise self.error(node, "expected a vector, got a scalar")
        if random and not x.random:
            raise self.error(node, "expected a vector with random access; cumsum, repeat and ramp come in order")

    # --- subscripts --------------------------------------------------------------------------------------------

    def _keyed(self, node: lang.Node) -> Expr | None:
        """`field[r]` or `field[j]` of a keyed field."""
        if not (isinstance(node, lang.Subscript) and isinstance(node.x, lang.Name)):
            return None
        f = self.fields.get(node.x.name)
        if f is None or not f.per:
            return None
        key = "r" if f.per == "ratio" else "j"
        if not (isinstance(node.index, lang.Name) and node.index.name == key):
            raise self.error(node.index, f"{f.name} is keyed by {f.per}: write {f.name}[{key}]")
        self._name(node.index)
        return self._name(node.x, keyed=True)

    def _subscript(self, node: lang.Subscript) -> Expr:
        keyed = self._keyed(node)
        if keyed is not None:
            return keyed
        x, index = self.resolve(node.x), self.resolve(node.index)
        self._need_vector(node, x, random=True)
        self._want(node, index, "int")
        if index.vector:
            raise self.error(node, "an index is a scalar; use gather(x, index)")
        return Expr("item", x.kind, args=(x, index))

    def _column(self, node: lang.Column) -> Expr:
        x = self.resolve(node.x)
        if x.op != "field":
            raise self.error(node, "only a field has columns")
        owner = self.context if x.owner else self.contract
        f = next(f for f in (owner.all_fields if owner else []) if f.name == x.name)
        if f.shape is None or len(f.shape) != 2 or not f.shape[1].isdigit() or node.column >= int(f.shape[1]):
            raise self.error(node, f"{f.name} has no column {node.column}")
        return evolve(x, column=node.column, number=int(f.shape[1]))

    def _slice(self, node: lang.Slice) -> Expr:
        x = self.resolve(node.x)
        self._need_vector(node, x, random=True)
        bounds = []
        for end, sign in ((node.low, 1), (node.high, -1)):
            e = self.resolve(end) if end else Expr("const")
            if e.op != "const" or not isinstance(e.number, int) or sign * e.number < 0:
                raise self.error(node, "slices are [n:], [:-n] or [n:-m] with numbers")
            bounds.append(abs(e.number))
        return Expr("slice", x.kind, True, True, (x,), low=bounds[0], high=bounds[1])

    # --- functions ---------------------------------------------------------------------------------------------

    def _call(self, node: lang.Call) -> Expr:
        name = node.name
        if name in {d.base for d in self.dims.values()} and name not in _FUNCTIONS:
            return Expr("dim", name=f"{name}({', '.join(a.name for a in node.args if isinstance(a, lang.Name))})")
        if name not in _FUNCTIONS:
            raise self.error(node, f"no function named {name!r}; known: {', '.join(_FUNCTIONS)}")
        if len(node.args) != _FUNCTIONS[name]:
            raise self.error(node, f"{name} takes {_FUNCTIONS[name]} argument(s), got {len(node.args)}")
        if name == "present":
            arg = node.args[0]
            if not isinstance(arg, lang.Name) or arg.name not in self.fields:
                raise self.error(node, "present() takes an array field")
            return Expr("present", "bool", name=arg.name)
        args = tuple(self.resolve(a) for a in node.args)
        random = all(a.random for a in args)
        if name in ("sum", "min", "max", "any", "len", *FORMS):
            for a in args:
                self._need_vector(node, a, random=name in ("unique", "injective", "disjoint"))
            if name in ("any", "all"):
                self._want(node, args[0], "bool")
            if name in ("sum", "min", "max") and args[0].kind != "int":
                raise self.error(node, f"{name} needs integers")
            return Expr(name, "bool" if name in ("any", *FORMS) else "int", args=args)
        if name in ("minimum", "maximum", "align"):
            for a in args:
                self._want(node, a, "int")
            return Expr(name, "int", any(a.vector for a in args), random, args)
        if name == "where":
            self._want(node, args[0], "bool")
            return Expr(name, args[1].kind, any(a.vector for a in args), random, args)
        if name == "finite":
            return Expr(name, "bool", args[0].vector, random, args)
        if name == "arange":
            return Expr(name, "int", True, True, args)
        if name in ("diff", "shift"):
            self._need_vector(node, args[0], random=True)
            return Expr(name, args[0].kind, True, True, args)
        if name == "gather":
            self._need_vector(node, args[0], random=True)
            self._need_vector(node, args[1])
            return Expr(name, args[0].kind, True, False, args)
        for a in args:
            self._need_vector(node, a)
        return Expr(name, args[0].kind, True, False, args)  # cumsum, repeat, ramp

    # --- rules -------------------------------------------------------------------------------------------------

    def rule(self, field: Field, text: str, full: bool) -> Rule:
        e = self.expression(text)
        guards: list[Expr] = []
        while e.op == "implies" and not e.args[0].vector and (e.args[1].op in FORMS or not e.vector):
            guards.append(e.args[0])
            e = e.args[1]
        form, body = (e.op, e.args) if e.op in FORMS else ("true", (e,))
        top = lang.Num(0, 0)
        if form == "true" and (e.vector or e.kind != "bool"):
            raise self.error(top, f"a check is a condition; this is a {'vector' if e.vector else e.kind}")
        for part in body:
            for x in part.walk():
                if x.op in FORMS:
                    raise self.error(top, f"{x.op}(...) must be the whole check, or the right side of implies")
        witness = _witness(body[0], field.name) if form in ("all", "true") else body[0]
        return Rule(field, text, full, form, tuple(guards), body, witness)


def _elementwise(e: Expr) -> Iterator[Expr]:
    """Parts that stand at the same index as the whole."""
    yield e
    if e.op in (*_ARITHMETIC, *_COMPARE, *_LOGIC, "not", "neg", "where", "minimum", "maximum", "finite"):
        for a in e.args:
            yield from _elementwise(a)


def _witness(body: Expr, own: str) -> Expr:
    """The value shown in a violation: the field itself, else the left side of the last comparison."""
    parts = list(_elementwise(body))
    for e in parts:
        if e.op in ("field", "scalar") and e.name == own and not e.owner:
            return e
    comparisons = [e for e in parts if e.op in _COMPARE]
    return comparisons[-1].args[0] if comparisons else body


def rules_of(schema: Schema, contract: Contract) -> list[Rule]:
    """Every check of a contract in order, its base's first; enum membership comes first for each field."""
    out: list[Rule] = []
    for f in contract.all_fields:
        scope = Scope(schema, contract, f)
        texts = [(_enum_check(schema, f), False)] if f.enum else []
        for text, full in [*texts, *((c.text, c.full) for c in f.checks)]:
            out.append(scope.rule(f, text, full))
    return out


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


@frozen
class Alternative:
    """One way for a field to be present: in a phase ("" = both), under capabilities, perhaps optional."""

    phase: str
    caps: tuple[str, ...]
    optional: bool


def presence_of(schema: Schema, contract: Contract, f: Field) -> list[Alternative]:
    out = []
    for part in f.presence.split(" or "):
        phase, caps, optional = "", [], False
        for token in (t.strip() for t in part.split(",")):
            if token in ("prefill", "decode"):
                phase = token
            elif token == "optional":
                optional = True
            elif token.startswith("cap:") and token[4:] in schema.presence:
                caps.append(token[4:])
            elif token != "always":
                raise SchemaError(
                    f"{contract.file}.toml: {f.name}: presence {token!r}; known: always, prefill, decode, optional, "
                    + ", ".join(f"cap:{c}" for c in schema.presence)
                )
        if phase and not contract.phase_rule:
            raise SchemaError(
                f"{contract.file}.toml: {f.name}: presence by phase, but the contract has no prefill_when"
            )
        out.append(Alternative(phase, tuple(caps), optional))
    return out
