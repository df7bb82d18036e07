"""`native/src/di_checks.c`: the C validators, and behind them the table of contracts (`emit_table`)."""

from __future__ import annotations

from generator.c_loops import Loop, Scratch, c_type, dim_name
from generator.c_prelude import PRELUDE
from generator.c_ranges import natural_of, part_of, range_test
from generator.emit_c import BANNER
from generator.emit_table import contract_table, quoted
from generator.expr import Expr
from generator.presence import presence_of
from generator.resolve import Scope
from generator.rules import Rule, rules_of
from generator.schema import Contract, Field, Schema


class _Emitter:
    """One contract's check function."""

    def __init__(self, schema: Schema, c: Contract) -> None:
        self.schema, self.c = schema, c
        name = c.context or (c.base.context if c.base else "")
        self.context = schema.contract(name) if name else None
        self.number = {n: i for i, (n, _) in enumerate(c.links)}

        self.natural: set[tuple[str, str]] = set()

    def scratch(self) -> Scratch:
        return Scratch(self.c, self.context, natural=self.natural)

    def site(self, f: Field, check: int, text: str) -> str:
        key = {"": "-1", "ratio": "(int32_t)r", "draft_step": "(int32_t)j"}[f.per]
        return (
            f"(di_site){{DI_CONTRACT_{self.c.macro}, {self.number[f.name]}, {check}, {key},"
            f" {quoted(f'{self.c.name}.{f.name}')}, {quoted(text)}, step_id}}"
        )

    def scalar(self, e: Expr) -> str:
        return Loop(self.scratch()).scalar(e)

    def keys(self, f: Field, bucket: bool = True) -> tuple[str, str]:
        """(opening, closing) of the block that visits each key of a field."""
        if f.per == "ratio":
            test = "" if not bucket or f.ratios == "all" else f" if (!in_{f.ratios}[b]) continue;"
            return f"for (int32_t b = 0; b < ratios; b++) {{ const int64_t r = l->ratios[b]; (void)r;{test}", "}"
        if f.per == "draft_step":
            return "for (int32_t b = 0; b < drafts; b++) { const int64_t j = b; (void)j;", "}"
        return "do {", "} while (0);"

    def envelope(self) -> list[str]:
        path = "rec->base." if self.c.base else "rec->"
        rows = []
        for n, cond in (
            ("struct_size", f"{path}struct_size < sizeof *rec"),
            ("chain", f"{path}chain != DI_HASH_{self.c.macro}"),
        ):
            f = Field(name=n, dtype="u64", doc="")
            text = "struct_size >= sizeof record" if n == "struct_size" else "chain of this contract"
            rows.append(
                f"if ({cond}) return di_violation(error, {self.site(f, -1, text)}, -1, 0, true, (int64_t){path}{n});"
            )
        return rows

    def views(self) -> list[str]:
        out: list[str] = []
        s = self.scratch()
        for f in self.c.all_fields:
            if not f.is_array:
                continue
            allowed, required = [], []
            for a in presence_of(self.schema, self.c, f):
                phase = {"": "true", "prefill": "prefill", "decode": "!prefill"}[a.phase]
                allowed.append(phase)
                if not a.optional:
                    scope = Scope(self.schema, self.c, None)
                    caps = [self.scalar(scope.expression(self.schema.presence[n])) for n in a.caps]
                    required.append(" && ".join([phase, *caps]))
            ok = " || ".join(allowed) if "true" not in allowed else "true"
            need = " || ".join(f"({r})" for r in required) or "false"
            if f.per == "ratio" and f.ratios != "all":
                ok, need = f"in_{f.ratios}[b] && ({ok})", f"in_{f.ratios}[b] && ({need})"
            opening, closing = self.keys(f, bucket=False)
            texts = [f"presence {f.presence}", f"dtype {f.dtype}", f"shape {f.count}", "contiguous"]
            sites = " : ".join(
                [f"fault == {k + 1} ? {quoted(t)}" for k, t in enumerate(texts[:-1])] + [quoted(texts[-1])]
            )
            site = self.site(f, -1, "@").replace('"@"', sites)
            plain = f"di_is_plain(&{s.path('', f.name)}, DI_DTYPE_{f.dtype.upper()}, {len(f.shape or ())})"
            out += [
                opening,
                f"if (({ok}) && {plain}) continue;",
                (
                    f"int64_t value; const int fault = di_view_fault(&{s.path('', f.name)}, {ok}, {need},"
                    f" DI_DTYPE_{f.dtype.upper()}, {len(f.shape or ())}, &value);"
                ),
                f"if (fault) return di_violation(error, {site}, -1, 0, true, value);",
                closing,
            ]
        return out

    def dims(self) -> tuple[list[str], dict[str, str]]:
        """Declarations of free dimensions (-1: unbound), and C text of each dimension."""
        out = []
        for d in self.c.all_dims.values():
            if d.value == "free":
                keyed = "(" in d.name
                capacity = "DI_MAX_RATIOS" if d.name.endswith("(r)") else "DI_MAX_DRAFT_STEPS"
                name = f"free_{dim_name(d.name)}"
                out.append(
                    f"int64_t {name}{f'[{capacity}]' if keyed else ''}{' = {0}' if keyed else ' = -1'}; (void){name};"
                )
                if keyed:
                    out.append(f"for (int k = 0; k < {capacity}; k++) {name}[k] = -1;")
        return out, {}

    def dim_values(self, used: set[str], s: Scratch) -> None:
        """Locals `d_X` for the dimensions that an expression uses."""
        for name in sorted(used):
            d = self.c.all_dims[name]
            if d.value == "free":
                source = f"free_{dim_name(name)}{'[b]' if '(' in name else ''}"
                s.lines.append(f"const int64_t {dim_name(name)} = di_max({source}, 0);")
                continue
            keyed = Field(name="dim", dtype="i32", doc="", per="ratio") if name.endswith("(r)") else None
            e = Scope(self.schema, self.c, keyed).expression(d.value)
            self.open_arrays([e], s)
            s.lines.append(f"const int64_t {dim_name(name)} = {Loop(s).scalar(e)};")

    def open_arrays(self, exprs: list[Expr], s: Scratch) -> None:
        """Locals `f<k>` (data) and `n<k>` (elements) of every array read; leaves the block if one is absent."""
        for root in exprs:
            for e in root.walk():
                if e.op != "field" or (e.owner, e.name) in s.arrays:
                    continue
                k = len(s.arrays)
                s.arrays[(e.owner, e.name)] = k
                path = s.path(e.owner, e.name)
                ctype = c_type(s.field_of(e.owner, e.name))
                s.lines += [
                    f"if (!di_readable(&{path})) continue;",
                    f"const {ctype} *f{k} = {path}.data; const int64_t n{k} = di_size(&{path});",
                    f"(void)f{k}; (void)n{k};",
                ]

    def shapes(self) -> list[str]:
        out: list[str] = []
        for f in self.c.all_fields:
            if f.shape is None:
                continue
            opening, closing = self.keys(f)
            out.append(opening)
            path = self.scratch().path("", f.name)
            out.append(f"const di_view *v = &{path}; if (!di_present(v)) continue;")
            variants = (
                [("", f.shape)] if f.decode_shape is None else [("prefill", f.shape), ("!prefill", f.decode_shape)]
            )
            for condition, shape in variants:
                for axis, text in enumerate(shape):
                    out += self.axis(f, axis, text, condition)
            out.append(closing)
        return out

    def axis(self, f: Field, axis: int, text: str, condition: str) -> list[str]:
        site = self.site(f, -1, f"shape {f.count}")
        fault = f"return di_violation(error, {site}, {axis}, 0, true, v->shape[{axis}]);"
        opening = f"if ({condition}) do {{" if condition else "do {"
        dim = self.c.all_dims.get(text)
        if dim is not None and dim.value == "free":
            name = f"free_{dim_name(text)}{'[b]' if '(' in text else ''}"
            body = [f"if ({name} < 0) {name} = v->shape[{axis}];", f"if (v->shape[{axis}] != {name}) {fault}"]
        else:
            e = Scope(self.schema, self.c, f).expression(text)
            s = self.scratch()
            s.on_undefined = fault
            self.dim_values({x.name for x in e.walk() if x.op == "dim"}, s)
            lines = [
                line.replace("continue;", fault) if line.startswith("if (!di_readable") else line for line in s.lines
            ]
            before = len(s.lines)
            value = Loop(s).scalar(e)
            body = [*lines, *s.lines[before:], f"if (v->shape[{axis}] != {value}) {fault}"]
        return [opening, *body, "} while (0);"]

    def rule(self, i: int, rule: Rule) -> list[str]:
        s = self.scratch()
        site = self.site(rule.field, i, rule.text)
        s.on_undefined = f"return di_violation(error, {site}, -1, 0, true, 0);"
        exprs = [*rule.guards, *rule.body]
        level = "if (level >= DI_LEVEL_FULL) " if rule.full else ""
        step = "if (step != NULL) " if any(e.owner == "step" for e in rule.exprs) else ""
        opening, closing = self.keys(rule.field)
        kept = self.unless_kept(rule) if self.c.has_kept and rule.is_about_elements else ""
        head = [f"/* {rule.field.name}: {rule.text} */".replace("*/ ", "* / "), level + step + kept + opening]
        self.open_arrays(exprs, s)
        self.dim_values({e.name for e in rule.exprs if e.op == "dim"}, s)
        for g in rule.guards:
            s.lines.append(f"if (!{Loop(s).scalar(g)}) continue;")
        if rule.form == "true":
            condition = Loop(s).scalar(rule.body[0])
            shown = Loop(s).scalar(rule.witness)
            s.lines.append(f"if (!{condition}) {self.report(site, '-1', rule.witness, shown)}")
        elif rule.form == "all":
            self.every(rule, s, site)
        else:
            self.unique(rule, s, site)
        return [*head, *s.lines, closing]

    def unless_kept(self, rule: Rule) -> str:
        """C condition that precedes the block of a rule: not all arrays that it reads are kept."""
        mask = " | ".join(f"DI_KEPT_{self.c.macro}_{name.upper()}" for _, name in rule.arrays)
        return f"if (~kept & ({mask})) "

    def report(self, site: str, index: str, shown: Expr, text: str) -> str:
        if shown.kind == "float":
            return f"return di_violation(error, {site}, {index}, {text}, false, 0);"
        return f"return di_violation(error, {site}, {index}, 0, true, {text});"

    def every(self, rule: Rule, s: Scratch, site: str) -> None:
        loop = Loop(s)
        body = rule.body[0]
        condition = loop.element(body, "i")
        shown = loop.element(rule.witness, "i", False) if rule.witness.random else ""
        if not loop.statements:
            # Branch-free so that compilers vectorise it; the slow search runs only for a violation.
            n, first = loop.bound(), "0"
            part = part_of(body)
            if part is not None:
                body, limit = body.args[1], f"di_min({n}, di_max({loop.hoist(part.args[1])}, 0))"
                first, n = ("0", limit) if part.op == "<" else (limit, n)
                condition = loop.element(body, "i", False)
            test = range_test(body, s)
            if test:
                s.lines += [f"const int64_t first = {first}, n = {n};", f"if ({test}) continue;"]
            else:
                lane = self.lane(rule)
                s.lines += [
                    f"const int64_t first = {first}, n = {n}; {lane} wrong = 0;",
                    f"for (int64_t i = first; i < n; i++) wrong = ({lane})(wrong | ({condition} ? 0 : 1));",
                ]
            s.lines += [
                f"{'' if test else 'if (wrong) '}for (int64_t i = first; i < n; i++)",
                f"if (!{condition}) {self.report(site, 'i', rule.witness, shown)}",
            ]
            differing = loop.differing()
            if differing != "0":
                s.lines.append(f"if ({differing}) {self.past_end(rule, s, site)}")
            if not rule.guards and not rule.full and part is None:
                self.natural |= natural_of(body, self.natural)
            return
        if shown:
            loop.statements = [line.replace(loop.stop, f"bad = i; shown = {shown}; break;") for line in loop.statements]
        else:
            shown = loop.element(rule.witness, "i", False)
        kind = "double" if rule.witness.kind == "float" else "int64_t"
        s.lines += [
            f"const int64_t n = {loop.bound()}; int64_t bad = -1; {kind} shown = 0; int64_t i = 0;",
            *loop.declarations,
            "for (; i < n; i++) {",
            *loop.statements,
            f"if (!{condition}) {{ bad = i; shown = {shown}; break; }}",
            "}",
            f"if (bad >= 0) {self.report(site, 'bad', rule.witness, 'shown')}",
            *loop.after,
            f"if ({loop.differing()}) {self.past_end(rule, s, site)}",
        ]

    def lane(self, rule: Rule) -> str:
        """C type of what a loop collects: as narrow as the arrays, or compilers widen every value."""
        narrow = ("u8", "i8", "u16", "i16", "bool")
        fields = [self.scratch().field_of(owner, name) for owner, name in rule.arrays]
        return "uint8_t" if all(f.dtype in narrow for f in fields) else "int32_t"

    def past_end(self, rule: Rule, s: Scratch, site: str) -> str:
        """A vector ends at ``n`` where another one goes on; show the value there, if there is one."""
        witness = rule.witness
        length = Loop(s).length(witness) if witness.vector and witness.random else ""
        if not length:
            return f"return di_violation(error, {site}, n, 0, true, 0);"
        value = Loop(s).element(witness, "n", False)
        value = f"(n < {length} ? {value} : 0)"
        return self.report(site, "n", witness, value)

    def unique(self, rule: Rule, s: Scratch, site: str) -> None:
        loop = Loop(s)
        x = loop.element(rule.body[0], "i")
        other = Loop(s)
        if rule.form == "disjoint":
            y = other.element(rule.body[1], "k")
            s.lines += [
                f"const int64_t n = {loop.bound()}, m = {other.bound()}; const di_set set = di_set_open(l, m);",
                f"if (set.slots != NULL) for (int64_t k = 0; k < m; k++) (void)di_set_find(set, {y}, true);",
                f"for (int64_t i = 0; i < n; i++) {{ const int64_t x = {x}; bool found = false;",
                "if (set.slots != NULL) found = di_set_find(set, x, false);",
                f"else for (int64_t k = 0; k < m && !found; k++) found = {y} == x;",
                f"if (found) return di_violation(error, {site}, i, 0, true, x); }}",
            ]
            return
        y = other.element(rule.body[0], "k")
        skip = "if (x < 0) continue; " if rule.form == "injective" else ""
        s.lines += [
            f"const int64_t n = {loop.bound()}; const di_set set = di_set_open(l, n);",
            f"for (int64_t i = 0; i < n; i++) {{ const int64_t x = {x}; bool found = false; {skip}",
            "if (set.slots != NULL) found = di_set_find(set, x, true);",
            f"else for (int64_t k = 0; k < i && !found; k++) found = {y} == x;",
            f"if (found) return di_violation(error, {site}, i, 0, true, x); }}",
        ]

    def function(self) -> str:
        c = self.c
        phase = self.scalar(Scope(self.schema, c, None).expression(c.phase_rule)) if c.phase_rule else "false"
        rules = list(enumerate(rules_of(self.schema, c)))
        context = self.context.struct if self.context else ""
        arguments = f"const {c.struct} *rec, " + (f"const {context} *step, " if context else "")
        own_id = "rec->step_id" if any(f.name == "step_id" for f in c.all_fields) else ""
        step_id = f"{own_id} != 0 ? {own_id} : l->step_id" if own_id else "l->step_id"
        if context:
            step_id = f"step != NULL ? step->step_id : {step_id}"
        suffix = ("_in" if context else "") + ("_kept" if c.has_kept else "")
        more = "uint64_t kept, " if c.has_kept else ""
        lines = [
            f"int di_check_{c.file}{suffix}({arguments}const di_limits *l, int level, {more}di_error *error)",
            "{",
            "if (level <= DI_LEVEL_OFF) return 0;",
            *(["if (level >= DI_LEVEL_FULL) kept = 0;"] if c.has_kept else []),
            f"const uint64_t step_id = {step_id};",
            *self.envelope(),
            *self.preamble(),
            f"const bool prefill = {phase}; (void)prefill;",
            *self.views(),
            *[line for i, r in rules if r.only_scalars for line in self.rule(i, r)],
            *self.dims()[0],
            *self.shapes(),
            *[line for i, r in rules if not r.only_scalars for line in self.rule(i, r)],
            "return 0;",
            "}",
        ]
        text = _indent(lines)
        if context and c.has_kept:
            text += (
                f"\nint di_check_{c.file}_in({arguments}const di_limits *l, int level, di_error *error)\n"
                f"{{\n    return di_check_{c.file}_in_kept(rec, step, l, level, 0, error);\n}}\n"
            )
        if context and c.context:
            text += (
                f"\nint di_check_{c.file}(const {c.struct} *rec, const di_limits *l, int level, di_error *error)\n"
                f"{{\n    return di_check_{c.file}_in(rec, NULL, l, level, error);\n}}\n"
            )
        if not context:
            text += (
                f"\nint di_check_{c.file}(const {c.struct} *rec, const di_limits *l, int level, di_error *error)\n"
                f"{{\n    return di_check_{c.file}_kept(rec, l, level, 0, error);\n}}\n"
            )
        return text

    def preamble(self) -> list[str]:
        out = []
        pers = {f.per for f in self.c.all_fields}
        if "ratio" in pers:
            out.append("const int32_t ratios = (int32_t)di_min(l->num_ratios, DI_MAX_RATIOS);")
            out.append("bool in_sparse[DI_MAX_RATIOS] = {false}, in_dense[DI_MAX_RATIOS] = {false};")
            out.append("for (int32_t b = 0; b < ratios; b++) {")
            for kind in ("sparse", "dense"):
                out.append(f"in_{kind}[b] = di_has_ratio(l->ratios_{kind}, l->num_ratios_{kind}, l->ratios[b]);")
            out.append("}")
        if "draft_step" in pers:
            out.append("const int32_t drafts = (int32_t)di_min(di_add(l->num_draft, 1), DI_MAX_DRAFT_STEPS);")
        return out


def _indent(lines: list[str]) -> str:
    depth, out = 0, []
    for line in lines:
        closes = line.startswith("}")
        level = max(depth - (1 if closes else 0), 0)
        out.append("    " * level + line)
        depth += line.count("{") - line.count("}")
    return "\n".join(out) + "\n"


def checks(schema: Schema) -> str:
    functions = "\n".join(_Emitter(schema, c).function() for c in schema.contracts)
    return (
        f"/* {BANNER}\n *\n * Validators of the records, and the table that `deepinfer_contracts.verify` reads.\n"
        " * Each rule is one loop over its arrays: O(length), no allocation.\n */\n"
        '#include "di_clones.h"\n#include "di_contracts.h"\n\n'
        "#include <math.h>\n#include <stdbool.h>\n#include <stdio.h>\n#include <string.h>\n"
        f"{PRELUDE}\n{functions}\n{contract_table(schema)}"
    )
