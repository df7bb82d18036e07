"""The page of interfaces: what a backend, a model, a sampler and the other parts have to offer."""

from __future__ import annotations

import ast
import sys
from types import FunctionType
from typing import Any

from deepinfer_core import backend, interfaces
from generators import docstrings
from generators.markdown import NOTICE, prose
from generators.vocabulary import link_types

HEAD = """\
What a hook returns is an object with these methods. They are `typing.Protocol` classes of `deepinfer_core.interfaces`:
nothing has to derive from them, mypy checks a plugin against them, and at run time the core looks whether the methods
are there. `Tensor` is whatever the backend computes with; the core moves it from one plugin to another and does not
look inside.
"""


def interfaces_page() -> str:
    lines = ["# Interfaces", "", NOTICE, HEAD.rstrip()]
    texts = docstrings.attribute_texts(docstrings.source_tree(interfaces).body)
    for name in sorted(interfaces.__all__, key=str.lower):
        owner = getattr(interfaces, name)
        lines += ["", f"## {name}", ""]
        if isinstance(owner, FunctionType):
            lines += _function(owner)
        elif getattr(owner, "_is_protocol", False):
            lines += _protocol(name, owner)
        else:
            alias = next(
                node
                for node in docstrings.source_tree(interfaces).body
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
            )
            lines += ["```text", ast.unparse(alias), "```"]
            if texts.get(name):
                lines += ["", prose(texts[name])]
    return "\n".join(lines) + "\n"


def _protocol(name: str, owner: type) -> list[str]:
    node = docstrings.class_node(sys.modules[owner.__module__], name)
    said = docstrings.read_docstring(owner, name)
    lines = [prose(said.summary)]
    bases = [base.__name__ for base in owner.__bases__ if base.__name__ in interfaces.__all__]
    if bases:
        lines += ["", "Has all of " + ", ".join(f"[{base}](#{base.lower()})" for base in bases) + ", and:"]
    for paragraph in said.text:
        lines += ["", prose(paragraph)]
    texts = docstrings.attribute_texts(node.body)
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign):
            attribute = ast.unparse(statement.target)
            text = prose(texts[attribute])
            lines += ["", f"### `{attribute}: {ast.unparse(statement.annotation)}`", *(["", text] if text else [])]
        elif isinstance(statement, ast.FunctionDef):
            lines += ["", *_method(name, statement)]
    return lines


def _method(owner: str, node: ast.FunctionDef) -> list[str]:
    raw = ast.get_docstring(node)
    if raw is None:
        raise SystemExit(f"{owner}.{node.name} has no docstring: say what it does")
    is_property = any(ast.unparse(decorator) == "property" for decorator in node.decorator_list)
    signature = docstrings.signature_of(node, node.name)
    shown = f"{node.name}: {ast.unparse(node.returns)}" if is_property and node.returns else f"{node.name}()"
    block = [] if is_property else ["```text", signature, "```", ""]
    return [f"### `{shown}`", "", *block, *_description(docstrings.parse_docstring(raw), signature)]


def _function(function: Any) -> list[str]:
    tree = docstrings.source_tree(backend)
    node = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == function.__name__)
    signature = docstrings.signature_of(node, node.name)
    said = docstrings.read_docstring(function, function.__name__)
    return ["```text", signature, "```", "", *_description(said, signature)]


def _description(said: docstrings.Docstring, signature: str) -> list[str]:
    lines = [prose(said.summary)]
    for paragraph in said.text:
        lines += ["", prose(paragraph)]
    bullets = [f"* `{name}`: {prose(text)}" for name, text in said.params.items()]
    if said.returns:
        bullets.append(f"* Returns: {prose(said.returns)}")
    bullets += [f"* Raises {name}: {prose(text)}" for name, text in said.raises.items()]
    types = link_types(signature)
    if types:
        bullets.append(f"* Types: {types}.")
    return [*lines, *(["", *bullets] if bullets else [])]
