"""The page of types: the small records that hooks take and return, with every field."""

from __future__ import annotations

import ast
import inspect

import attrs

from deepinfer_core import types
from generators import docstrings
from generators.markdown import NOTICE, cell, prose

HEAD = """\
Records that hooks take and return, from `deepinfer_core.types`. They are frozen: a plugin makes new ones and changes
none. A field with a default may be left out. Fields are only ever added at the end of a record and with a default, as
long as the major version of the plugin API stays.
"""


def records_page() -> str:
    lines = ["# Types", "", NOTICE, HEAD.rstrip()]
    aliases = [
        node
        for node in docstrings.source_tree(types).body
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("Literal")
    ]
    for name, owner in vars(types).items():
        if inspect.isclass(owner) and attrs.has(owner) and owner.__module__ == types.__name__:
            lines += ["", f"## {name}", "", *_record(name, owner)]
    lines += ["", "## Choices", "", "| name | values |", "| --- | --- |"]
    for node in aliases:
        values = ", ".join(f"`{ast.literal_eval(item)}`" for item in _choices(node.value))
        lines.append(f"| `{ast.unparse(node.targets[0])}` | {values} |")
    return "\n".join(lines) + "\n"


def _choices(value: ast.expr) -> list[ast.expr]:
    if not isinstance(value, ast.Subscript):
        raise SystemExit(f"{ast.unparse(value)} is no Literal[...]")
    return list(value.slice.elts) if isinstance(value.slice, ast.Tuple) else [value.slice]


def _record(name: str, owner: type) -> list[str]:
    said = docstrings.read_docstring(owner, name)
    lines = [prose(said.summary)]
    for paragraph in said.text:
        lines += ["", prose(paragraph)]
    node = docstrings.class_node(types, name)
    texts = docstrings.attribute_texts(node.body)
    lines += ["", "| field | type | default | meaning |", "| --- | --- | --- | --- |"]
    for statement in node.body:
        if not isinstance(statement, ast.AnnAssign):
            continue
        field = ast.unparse(statement.target)
        if not texts[field]:
            raise SystemExit(f"deepinfer_core.types.{name}.{field} has no text below it: say what it means")
        default = "required" if statement.value is None else _default(statement.value)
        kind = cell(ast.unparse(statement.annotation))
        lines.append(f"| `{field}` | `{kind}` | {default} | {cell(texts[field])} |")
    return lines


def _default(value: ast.expr) -> str:
    text = ast.unparse(value)
    if text in ("()", "frozenset()", "field(factory=dict)", "''"):
        return "empty"
    return f"`{text}`"
