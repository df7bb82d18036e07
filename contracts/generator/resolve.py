"""Names and types: turns a syntax tree into typed expressions."""

from __future__ import annotations

from attrs import evolve

from generator import lang
from generator.expr import COMPARE, FORMS, LOGIC, Expr
from generator.schema import Contract, Field, Schema, SchemaError

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
        if node.op in LOGIC:
            self._want(node, a, "bool")
            self._want(node, b, "bool")
            return Expr(node.op, "bool", vector, random, (a, b))
        if node.op in COMPARE:
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
