"""Docstrings taken apart: text, fields such as ``:param name:``, and the texts below attributes."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from pathlib import Path
from types import ModuleType

from attrs import field, frozen

WIDTH = 110

_FIELD = re.compile(r"^:(param|returns|raises|cause|remedy)(?: ([\w., ]+))?: *", re.M)


@frozen
class Docstring:
    """``text`` is what stands outside of fields, in paragraphs."""

    summary: str
    text: list[str]
    params: dict[str, str] = field(factory=dict)
    returns: str = ""
    raises: dict[str, str] = field(factory=dict)
    cause: str = ""
    remedy: str = ""


def read_docstring(owner: object, where: str) -> Docstring:
    """The docstring of ``owner``, which has to have one.

    :param where: Its name, for the message.
    """
    raw = getattr(owner, "__doc__", None)
    if not raw:
        raise SystemExit(f"{where} has no docstring: say what it is")
    return parse_docstring(inspect.cleandoc(raw))


def parse_docstring(raw: str) -> Docstring:
    plain: list[str] = []
    params: dict[str, str] = {}
    raises: dict[str, str] = {}
    single = {"returns": "", "cause": "", "remedy": ""}
    for block in re.split(r"\n\s*\n", raw):
        starts = list(_FIELD.finditer(block))
        before = block[: starts[0].start()] if starts else block
        if before.strip():
            plain.append(_joined(before))
        for number, start in enumerate(starts):
            end = starts[number + 1].start() if number + 1 < len(starts) else len(block)
            kind, name, text = start[1], start[2] or "", " ".join(block[start.end() : end].split())
            if kind in single:
                single[kind] = text
            else:
                (params if kind == "param" else raises)[name] = text
    return Docstring(summary=plain[0], text=plain[1:], params=params, raises=raises, **single)


def _joined(text: str) -> str:
    """The paragraph on one line, unless it is a literal block or a list."""
    lines = text.strip("\n").splitlines()
    if any(line.startswith(("    ", "* ", "- ")) for line in lines):
        return text.strip("\n")
    return " ".join(" ".join(lines).split())


@functools.cache
def source_tree(module: ModuleType) -> ast.Module:
    if module.__file__ is None:
        raise SystemExit(f"{module.__name__} has no source")
    return ast.parse(Path(module.__file__).read_text("utf-8"))


def attribute_texts(body: list[ast.stmt]) -> dict[str, str]:
    """Name -> the text directly below its assignment or annotation, for a module's or a class's body."""
    texts: dict[str, str] = {}
    for statement, below in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name = statement.target.id
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id
        else:
            continue
        is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        text = below.value.value if is_text else ""  # type: ignore[union-attr]
        texts[name] = " ".join(inspect.cleandoc(text).split()) if isinstance(text, str) else ""
    return texts


def class_node(module: ModuleType, name: str) -> ast.ClassDef:
    for statement in source_tree(module).body:
        if isinstance(statement, ast.ClassDef) and statement.name == name:
            return statement
    raise SystemExit(f"{module.__name__} has no class {name}")


def signature_of(node: ast.FunctionDef, name: str = "") -> str:
    """``name(host: HostInfo, n: int = 1) -> ProbeReport | None`` without ``self``; one argument a line if long."""
    plain = [*node.args.posonlyargs, *node.args.args]
    defaults = [*[None] * (len(plain) - len(node.args.defaults)), *node.args.defaults]
    shown = [_argument(given, default) for given, default in zip(plain, defaults, strict=True) if given.arg != "self"]
    if node.args.kwonlyargs:
        keywords = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        shown += ["*", *(_argument(given, default) for given, default in keywords)]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{name}({', '.join(shown)}){returns}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {argument},\n" for argument in shown) + f"){returns}"


def _argument(given: ast.arg, default: ast.expr | None) -> str:
    text = f"{given.arg}: {ast.unparse(given.annotation)}" if given.annotation else given.arg
    return text if default is None else f"{text} = {ast.unparse(default)}"
