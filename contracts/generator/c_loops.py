"""Expressions to C: scalars become values, vectors become the body of one loop.

A `Loop` holds the declarations before a loop, the statements at its index, and the lengths that must agree. Sequential
vectors (`cumsum`, `repeat`, `ramp`) keep a cursor that moves with the index, so every rule is O(length) without memory.
"""

from __future__ import annotations

from attrs import define, field

from generator.expr import COMPARE, Expr
from generator.schema import DTYPES, Contract, Field, SchemaError

_INFIX = {"<": "<", "<=": "<=", "==": "==", "!=": "!=", ">=": ">=", ">": ">", "and": "&&", "or": "||", "&": "&"}
# Inside a loop the operands are cheap and cannot trap: without branches compilers vectorise.
_BRANCHLESS = {"and": "&", "or": "|"}
_CALL = {"+": "di_add", "-": "di_sub", "*": "di_mul", "//": "di_floordiv", "%": "di_mod"}
_FLOAT_INFIX = {"+": "+", "-": "-", "*": "*"}


@define
class Scratch:
    """Names and lines of one rule: locals for arrays, temporaries, statements before the loop."""

    contract: Contract
    context: Contract | None
    lines: list[str] = field(factory=list)
    arrays: dict[tuple[str, str], int] = field(factory=dict)
    known: dict[Expr, str] = field(factory=dict)  # scalars already computed: the rule and its witness share them
    counter: int = 0
    on_undefined: str = ""  # statement when an element does not exist
    natural: set[tuple[str, str]] = field(factory=set)  # int32 arrays that earlier rules proved to have nothing below 0

    def fresh(self, prefix: str) -> str:
        self.counter += 1
        return f"{prefix}{self.counter}"

    def field_of(self, owner: str, name: str) -> Field:
        source = self.context if owner else self.contract
        for f in source.all_fields if source else []:
            if f.name == name:
                return f
        raise SchemaError(f"{self.contract.file}: no field {name}")

    def path(self, owner: str, name: str) -> str:
        """C lvalue of a field (of the current ratio or draft step)."""
        if owner:
            return f"step->{name}"
        inherited = self.contract.base is not None and any(f.name == name for f in self.contract.base.all_fields)
        f = self.field_of(owner, name)
        return f"rec->{'base.' if inherited else ''}{name}{'[b]' if f.per else ''}"

    def array(self, owner: str, name: str) -> int:
        return self.arrays[(owner, name)]


@define
class Loop:
    """The code of one vector at one index."""

    scratch: Scratch
    declarations: list[str] = field(factory=list)
    statements: list[str] = field(factory=list)
    lengths: list[str] = field(factory=list)
    leftovers: list[str] = field(factory=list)
    stop: str = "bad = i; break;"  # when an element cannot be computed

    # --- scalars -----------------------------------------------------------------------------------------------

    def scalar(self, e: Expr) -> str:
        s = self.scratch
        match e.op:
            case "const":
                return repr(e.number) if isinstance(e.number, float) else f"INT64_C({e.number})"
            case "key":
                return e.name
            case "limit":
                return f"(int64_t)l->{e.name}"
            case "dim":
                return dim_name(e.name)
            case "scalar":
                f = s.field_of(e.owner, e.name)
                return f"({'double' if f.dtype in ('f32', 'f64') else 'int64_t'}){s.path(e.owner, e.name)}"
            case "present":
                return f"di_present(&{s.path('', e.name)})"
            case "sum" | "min" | "max" | "any" | "len":
                return self.reduction(e)
            case "item":
                return self.item(e)
        if e.vector:
            raise SchemaError(f"{s.contract.file}: a vector where a scalar is needed: {e.op}")
        return self.combine(e, [self.scalar(a) for a in e.args])

    def combine(self, e: Expr, args: list[str]) -> str:
        """An elementwise operation over C expressions."""
        if e.vector and e.op in _BRANCHLESS:
            return f"({args[0]} {_BRANCHLESS[e.op]} {args[1]})"
        if e.op in _INFIX:
            return f"({args[0]} {_INFIX[e.op]} {args[1]})"
        if e.op in _CALL:
            if e.kind == "float":
                return f"({args[0]} {_FLOAT_INFIX[e.op]} {args[1]})"
            return f"{_CALL[e.op]}({args[0]}, {args[1]})"
        match e.op:
            case "implies":
                return f"(!{args[0]} {'|' if e.vector else '||'} {args[1]})"
            case "not":
                return f"(!{args[0]})"
            case "neg":
                return f"(-{args[0]})" if e.kind == "float" else f"di_sub(0, {args[0]})"
            case "where":
                return f"({args[0]} ? {args[1]} : {args[2]})"
            case "minimum" | "maximum":
                return f"di_{e.op[:3]}({args[0]}, {args[1]})"
            case "align":
                return f"di_align({args[0]}, {args[1]})"
            case "finite":
                return f"(isfinite({args[0]}) != 0)"
        raise SchemaError(f"{self.scratch.contract.file}: no C form of {e.op}")

    def reduction(self, e: Expr) -> str:
        s = self.scratch
        x = e.args[0]
        if e.op == "len":
            return self.length(x)
        if e in s.known:
            return s.known[e]
        if e.op in ("min", "max") and self.is_i32(x):
            k = s.array(x.owner, x.name)
            s.known[e] = f"di_{'least' if e.op == 'min' else 'greatest'}(f{k}, n{k})"
            return s.known[e]
        inner = Loop(s, stop="break;")
        value = inner.element(x, "i")
        out = s.known[e] = s.fresh("red")
        update = {
            "sum": f"{out} = di_add({out}, {value});",
            "min": f"if (i == 0 || {value} < {out}) {out} = {value};",
            "max": f"if (i == 0 || {value} > {out}) {out} = {value};",
            "any": f"if ({value}) {out} = 1;",
        }[e.op]
        s.lines.append(f"{'int' if e.kind == 'bool' else 'int64_t'} {out} = 0;")
        s.lines.append("{")
        s.lines += inner.declarations
        s.lines.append(f"for (int64_t i = 0; i < {inner.bound()}; i++) {{")
        s.lines += [*inner.statements, update, "}", "}"]
        return out

    def item(self, e: Expr) -> str:
        s = self.scratch
        x, index = e.args
        if e in s.known:
            return s.known[e]
        n, at = s.fresh("len"), s.fresh("at")
        s.lines.append(f"const int64_t {n} = {self.length(x)};")
        s.lines.append(f"const int64_t {at} = di_index({self.scalar(index)}, {n});")
        s.lines.append(f"if ({at} < 0) {{ {s.on_undefined} }}")
        s.known[e] = self.element(x, at)
        return s.known[e]

    # --- vectors -----------------------------------------------------------------------------------------------

    def length(self, x: Expr) -> str:
        match x.op:
            case "field":
                n = f"n{self.scratch.array(x.owner, x.name)}"
                return f"({n} / {x.number})" if x.column >= 0 else n
            case "slice":
                return f"di_max({self.length(x.args[0])} - {x.low + x.high}, 0)"
            case "diff":
                return f"di_max({self.length(x.args[0])} - 1, 0)"
            case "shift" | "cumsum":
                return self.length(x.args[0])
            case "gather":
                return self.length(x.args[1])
            case "arange":
                return f"di_max({self.scalar(x.args[0])}, 0)"
            case "repeat" | "ramp":
                return ""  # known only at the end
        parts = [n for n in (self.length(a) for a in x.args if a.vector) if n]
        if not parts:
            return ""
        return parts[0]

    def bound(self) -> str:
        lengths = list(dict.fromkeys(n for n in self.lengths if n))
        if not lengths:
            raise SchemaError(f"{self.scratch.contract.file}: a rule needs a vector of known length")
        text = lengths[0]
        for n in lengths[1:]:
            text = f"di_min({text}, {n})"
        return text

    def differing(self) -> str:
        """C condition: lengths or leftovers disagree."""
        lengths = list(dict.fromkeys(n for n in self.lengths if n))
        return " || ".join([f"{lengths[0]} != {n}" for n in lengths[1:]] + self.leftovers) or "0"

    def element(self, e: Expr, i: str, count: bool = True) -> str:
        """C expression of element ``i``; may add declarations and statements."""
        if not e.vector:
            return self.hoist(e)
        s = self.scratch
        if e.op in ("field", "slice", "diff", "shift", "cumsum", "arange") and count:
            self.lengths.append(self.length(e))
        match e.op:
            case "field":
                k = s.array(e.owner, e.name)
                cast = {"float": "double", "bool": "int64_t"}.get(e.kind, "int64_t")
                text = f"(({cast})f{k}[{f'{i} * {e.number} + {e.column}' if e.column >= 0 else i}])"
                return f"({text} != 0)" if e.kind == "bool" else text
            case "slice":
                return self.element(e.args[0], f"({i} + {e.low})" if e.low else i, False)
            case "diff":
                x = e.args[0]
                return f"di_sub({self.element(x, f'({i} + 1)', False)}, {self.element(x, i, False)})"
            case "shift":
                before = self.element(e.args[0], f"({i} - 1)", False)
                return f"({i} > 0 ? {before} : {self.hoist(e.args[1])})"
            case "arange":
                return f"({i})"
            case "gather":
                return self.gather(e, i, count)
            case "cumsum":
                return self.cumsum(e, i)
            case "repeat":
                return self.repeat(e.args[0], e.args[1])
            case "ramp":
                return self.repeat(None, e.args[0])
        if e.op in COMPARE:
            return self.compare(e, i, count)
        return self.combine(e, [self.element(a, i, count) for a in e.args])

    def compare(self, e: Expr, i: str, count: bool) -> str:
        """A comparison, in 32 bits where both sides fit them: wider lanes cost twice and more."""
        a, b = e.args
        if a.op == "diff" and b.op == "const" and e.op == ">=" and b.number in (0, 1):
            # No difference, which might not fit: neighbours are compared.
            self.lengths += [self.length(a)] if count else []
            cast = "(int32_t)" if self.is_i32(a.args[0]) else ""
            after, before = (f"{cast}{self.element(a.args[0], at, False)}" for at in (f"({i} + 1)", i))
            return self.combine(Expr(">" if b.number else ">=", "bool", True), [after, before])
        if a.vector and not b.vector and e.kind == "bool" and e.op in ("<", "<=", ">", ">=") and a.kind == "int":
            core, bound = a, b
            while core.op == "+" and core.args[0].vector and not core.args[1].vector:
                core, bound = core.args[0], Expr("-", "int", args=(bound, core.args[1]))
            if self.is_narrow(core) and not self.is_narrow(bound):
                if e.op in ("<", ">"):
                    bound = Expr("-" if e.op == "<" else "+", "int", args=(bound, Expr("const", number=1)))
                strict = {"<": "<=", ">": ">="}.get(e.op, e.op)
                return self.combine(
                    Expr(strict, "bool", True),
                    [f"(int32_t)({self.element(core, i, count)})", f"di_narrow({self.hoist(bound)})"],
                )
        if self.is_lowest_bit(a) and b.op == "const" and b.number == 0 and e.op in ("==", "!="):
            # Shifted to the top: gcc takes "& 1" for a truth value, and such a loop does not vectorise.
            x = a.args[0]
            dtype = self.scratch.field_of(x.owner, x.name).dtype
            value = self.element(x, i, count)
            return f"(({DTYPES[dtype][0]})((uint32_t){value} << {DTYPES[dtype][1] * 8 - 1}) {e.op} 0)"
        args = [self.element(x, i, count) for x in e.args]
        if all(self.is_narrow(x) for x in e.args):
            args = [f"(int32_t)({x})" for x in args]
        return self.combine(e, args)

    def is_lowest_bit(self, e: Expr) -> bool:
        """Whether ``e`` is the lowest bit of each value of an array of short unsigned numbers."""
        if e.op != "&" or e.args[1].op != "const" or e.args[1].number != 1:
            return False
        x = e.args[0]
        return x.op == "field" and x.column < 0 and self.scratch.field_of(x.owner, x.name).dtype in ("u8", "u16")

    def is_i32(self, e: Expr) -> bool:
        return e.op == "field" and e.column < 0 and self.scratch.field_of(e.owner, e.name).dtype == "i32"

    def is_narrow(self, e: Expr) -> bool:
        """Whether every value fits 32 bits, so that a comparison needs no 64-bit arithmetic."""
        if e.op in ("field", "scalar") and e.kind == "int":
            return self.scratch.field_of(e.owner, e.name).dtype in ("u8", "i8", "u16", "i16", "i32")
        if e.op == "&":
            return all(self.is_narrow(a) for a in e.args)
        if e.op == "-" and e.vector:  # of two numbers that are not negative
            return all(self.is_i32(a) and (a.owner, a.name) in self.scratch.natural for a in e.args)
        return e.op == "limit" or (e.op == "const" and e.kind == "int" and abs(e.number) < 1 << 31)

    def hoist(self, e: Expr) -> str:
        if e.op in ("const", "key", "limit", "dim", "scalar"):
            return self.scalar(e)
        s = self.scratch
        key = Expr("hoist", args=(e,))
        if key not in s.known:
            ctype = {"float": "double", "bool": "int"}.get(e.kind, "int64_t")
            value, s.known[key] = self.scalar(e), s.fresh("s")
            s.lines.append(f"const {ctype} {s.known[key]} = {value};")
        return s.known[key]

    def gather(self, e: Expr, i: str, count: bool) -> str:
        at = self.scratch.fresh("g")
        index = self.element(e.args[1], i, count)
        self.statements.append(f"const int64_t {at} = {index};")
        self.statements.append(f"if ({at} < 0 || {at} >= {self.length(e.args[0])}) {{ {self.stop} }}")
        return self.element(e.args[0], at, False)

    def cumsum(self, e: Expr, i: str) -> str:
        total = self.scratch.fresh("c")
        value = self.element(e.args[0], i, False)
        self.declarations.append(f"int64_t {total} = 0;")
        self.statements.append(f"{total} = di_add({total}, {value});")
        return total

    def repeat(self, x: Expr | None, counts: Expr) -> str:
        """Cursor ``j`` over the counts; ``left`` elements of it remain; the ramp counts up from 0."""
        s = self.scratch
        k = s.fresh("")
        j, left, value, at, wrong = f"j{k}", f"left{k}", f"value{k}", f"at{k}", f"wrong{k}"
        inner = Loop(s, stop=f"{wrong} = 1; break;")
        count = inner.element(counts, j)
        held = inner.element(x, j) if x is not None else ""
        self.declarations += [f"int64_t {j} = -1, {left} = 0, {at} = -1; int {wrong} = 0;"]
        if x is not None:
            self.declarations.append(f"{'double' if x.kind == 'float' else 'int64_t'} {value} = 0;")
        self.declarations += inner.declarations
        advance = [
            f"while ({left} == 0 && {j} + 1 < {inner.bound()}) {{",
            f"{j}++;",
            *inner.statements,
            f"{left} = {count};",
            *([f"{value} = {held};"] if x is not None else []),
            f"{at} = -1;",
            f"if ({left} < 0) {{ {wrong} = 1; {left} = 0; break; }}",
            "}",
        ]
        self.statements += [*advance, f"if ({wrong} || {left} == 0) {{ {self.stop} }}", f"{left}--; {at}++;"]
        rest = s.fresh("rest")
        differing = inner.differing()
        self.leftovers.append(f"{rest}")
        self.after += [
            f"int {rest} = {left} != 0 || {wrong} || {differing};",
            (
                f"for ({j}++; !{rest} && {j} < {inner.bound()}; {j}++)"
                f" {{ {' '.join(inner.statements)} {rest} = {count} != 0; }}"
            ),
        ]
        if inner.statements:
            self.after[-1] = self.after[-1].replace(f"{wrong} = 1; break;", f"{rest} = 1; break;")
        return value if x is not None else at

    after: list[str] = field(factory=list)  # statements after the loop that compute leftovers


def dim_name(name: str) -> str:
    return "d_" + name.replace("(", "_").replace(")", "")


def c_type(f: Field) -> str:
    return DTYPES[f.dtype][0]
