"""Who implements each hook among the first-party plugins, and which tests of the conformance kit judge it.

Both are read from the sources: nothing is imported. A hook without either is no part of the plugin API.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
KIT = ROOT / "deepinfer_core" / "src" / "deepinfer_core" / "conformance"


def first_party_users(plugins: Path = ROOT / "plugins") -> dict[str, list[str]]:
    """Hook -> distributions that have a function of its name, marked with ``hookimpl``."""
    users: dict[str, set[str]] = {}
    for path in sorted(plugins.glob("*/src/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and any(map(_is_hookimpl, node.decorator_list)):
                users.setdefault(node.name, set()).add(path.relative_to(plugins).parts[0].replace("_", "-"))
    return {hook: sorted(names) for hook, names in users.items()}


def conformance_tests(kit: Path = KIT) -> dict[str, list[str]]:
    """Hook -> files of the kit (``backend/test_probe.py``) whose tests have the marker ``hook`` with its name."""
    tests: dict[str, set[str]] = {}
    for path in sorted(kit.glob("*/test_*.py")):
        for hook in _marked(ast.parse(path.read_text("utf-8"))):
            tests.setdefault(hook, set()).add(path.relative_to(kit).as_posix())
    return {hook: sorted(names) for hook, names in tests.items()}


def faults(hooks: Iterable[str], users: Mapping[str, Sequence[str]], tests: Mapping[str, Sequence[str]]) -> list[str]:
    """What is wrong with the hooks of the plugin API, in sentences; empty if nothing is."""
    known = sorted(hooks)
    found = [f"{hook} has no first-party user" for hook in known if not users.get(hook)]
    found += [f"{hook} has no conformance test with the marker hook({hook!r})" for hook in known if not tests.get(hook)]
    found += [f"{', '.join(users[hook])} implements {hook}, which is no hook" for hook in sorted({*users} - {*known})]
    found += [f"{', '.join(tests[hook])} judges {hook}, which is no hook" for hook in sorted({*tests} - {*known})]
    return found


def _is_hookimpl(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(called).rpartition(".")[2] == "hookimpl"


def _marked(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.hook":
            yield from map(ast.literal_eval, node.args)
