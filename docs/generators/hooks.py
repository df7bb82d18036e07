"""The page of hooks: signature, meaning, who implements and who judges each, from the specifications,
the first-party plugins and the conformance kit."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from deepinfer_core import API_VERSION, hookspecs
from generators import docstrings
from generators.hook_users import conformance_tests, faults, first_party_users
from generators.markdown import NOTICE, cell, prose
from generators.vocabulary import link_types

HEAD = """\
A plugin is a module with functions of these names, each marked with `@hookimpl` of `deepinfer_core`. They are called
with keyword arguments, and an implementation may leave out any argument that it does not need. Most return an object,
which the engine then calls directly: [why hooks compose and do not run](../explanation/hooks.md). What returns
something else than stands here ends with `E_HOOK_RETURN`, which names the hook, the plugin and the type.
"""
ASKED = re.compile(r"Asked only of ([^.]+)\.|(Any plugin) may implement it\.")


def hooks_page() -> str:
    sections = list(_sections())
    lines = ["# Hooks", "", NOTICE, f"Plugin API {API_VERSION[0]}.{API_VERSION[1]}.", "", HEAD]
    lines += ["| hook | what for | asked of | used by |", "| --- | --- | --- | --- |"]
    users, tests = first_party_users(), conformance_tests()
    wrong = faults([node.name for _, nodes in sections for node in nodes], users, tests)
    if wrong:
        raise SystemExit("a hook has a first-party user and a conformance test, or is none:\n" + "\n".join(wrong))
    for _, nodes in sections:
        for node in nodes:
            said = docstrings.read_docstring(getattr(hookspecs, node.name), node.name)
            by = ", ".join(f"`{name}`" for name in users[node.name])
            lines.append(f"| [`{node.name}`](#{node.name}) | {cell(said.summary)} | {_asked(said)} | {by} |")
    for title, nodes in sections:
        lines += ["", f"## {title.capitalize()}"]
        for node in nodes:
            lines += ["", *_entry(node, users[node.name], tests[node.name])]
    return "\n".join(lines) + "\n"


def _sections() -> Iterator[tuple[str, list[ast.FunctionDef]]]:
    """The banners of the module, each with the hooks below it."""
    path = Path(str(hookspecs.__file__))
    banners = [
        (number, match[1])
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if (match := re.match(r"# --- (.+?) -+$", line))
    ]
    body = docstrings.source_tree(hookspecs).body
    nodes = [node for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("deepinfer_")]
    for (first, title), (last, _) in zip(banners, [*banners[1:], (10**9, "")], strict=True):
        yield title, [node for node in nodes if first < node.lineno < last]


def _entry(node: ast.FunctionDef, users: list[str], tests: list[str]) -> list[str]:
    function = getattr(hookspecs, node.name)
    said = docstrings.read_docstring(function, node.name)
    options = function.deepinfer_spec
    arguments = [argument.arg for argument in node.args.args]
    if sorted(said.params) != sorted(arguments):
        raise SystemExit(f"{node.name} has the arguments {arguments} and describes {list(said.params)}")
    if not re.search(r"Since API \d+\.\d+\.$", said.text[-1]):
        raise SystemExit(f"{node.name}: its docstring does not end with `Since API MAJOR.MINOR.`")
    signature = docstrings.signature_of(node, node.name)
    lines = [f"### {node.name}", "", "```text", signature, "```", "", prose(said.summary), ""]
    for paragraph in said.text[:-1]:
        lines += [prose(paragraph), ""]
    lines += [f"* `{name}`: {prose(text)}" for name, text in said.params.items()]
    if said.returns:
        lines.append(f"* Returns: {prose(said.returns)}")
    kind = "the first result that is not None counts" if options["firstresult"] else "every implementation is called"
    lines.append(f"* Asked of {_asked(said)}; {kind}.")
    since = re.findall(r"Since API (\d+\.\d+)\.", said.text[-1])[0]
    lines.append(f"* Since API {since}. First-party user: {', '.join(f'`{name}`' for name in users)}.")
    lines.append(f"* Judged by the conformance kit in {', '.join(f'`{name}`' for name in tests)}.")
    types = link_types(signature)
    if types:
        lines.append(f"* Types: {types}.")
    return lines


def _asked(said: docstrings.Docstring) -> str:
    """Who may implement the hook."""
    found = ASKED.search(" ".join(said.text))
    if found is None:
        raise SystemExit(f"{said.summary!r}: say `Asked only of ...` or `Any plugin may implement it.`")
    return prose(found[1] or "any plugin")
