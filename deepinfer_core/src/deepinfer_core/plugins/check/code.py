"""A plugin's modules as text: which hooks they implement, and what importing them would import.

Only what stands at the top level is seen. A hook that a module takes from elsewhere counts as there, and its arguments
are not looked at; the conformance kit imports the plugin and sees everything.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import PurePosixPath

from attrs import field, frozen

from deepinfer_core.plugins.check.subject import Files

HEAVY = frozenset({"torch", "torch_npu", "triton", "tilelang", "cupy", "jax", "tensorflow", "transformers"})
"""What a plugin module may not import at its top level (``spec/plugins.md`` 4): each costs seconds, or a device."""


@frozen
class Hook:
    """One hook implementation. ``arguments`` is None where only its name is known."""

    name: str
    where: str
    arguments: tuple[str, ...] | None = None
    is_optional: bool = False


@frozen
class HeavyImport:
    """``module`` is imported at ``where``, when the plugin module is."""

    module: str
    where: str


@frozen
class ModuleText:
    """What the text of a plugin module says."""

    hooks: tuple[Hook, ...] = ()
    heavy: tuple[HeavyImport, ...] = ()
    problem: str = ""
    """Why it could not be read."""
    has_text: bool = True
    """False: there is a compiled module of that name only."""


def module_file(files: Files, module: str) -> str | None:
    """The file of a module, by its path below the import path; a compiled one where there is no text."""
    stem = module.replace(".", "/")
    for path in (f"{stem}.py", f"{stem}/__init__.py"):
        if files.read(path) is not None:
            return path
    folder, _, name = stem.rpartition("/")
    compiled = [path for path in files.below(folder) if PurePosixPath(path).suffix in (".so", ".pyd")]
    return next((path for path in compiled if PurePosixPath(path).name.partition(".")[0] == name), None)


def read_module(files: Files, module: str) -> ModuleText:
    """Read a module and those of its own package that it imports at the top level."""
    path = module_file(files, module)
    if path is None:
        return ModuleText(problem=f"there is no module {module}")
    if not path.endswith(".py"):
        return ModuleText(has_text=False)
    walk = _Walk(files, module.partition(".")[0])
    try:
        tree = walk.tree(path)
        walk.follow(module, tree, path)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as exc:  # the last: nested beyond what ast takes
        where = f"{exc.filename or path}:{exc.lineno}" if isinstance(exc, SyntaxError) and exc.lineno else path
        return ModuleText(problem=f"{where} is no Python: {_reason(exc)}")
    return ModuleText(tuple(_hooks(tree, path)), tuple(walk.heavy))


def _reason(exc: Exception) -> str:
    if isinstance(exc, SyntaxError):
        return exc.msg
    return "it is nested too deeply" if isinstance(exc, RecursionError | MemoryError) else str(exc)


@frozen
class _Walk:
    files: Files
    top: str
    seen: set[str] = field(factory=set)
    heavy: list[HeavyImport] = field(factory=list)

    def tree(self, path: str) -> ast.Module:
        return ast.parse(self.files.read(path) or b"", filename=path)

    def follow(self, module: str, tree: ast.Module, path: str) -> None:
        package = module if path.endswith("/__init__.py") else module.rpartition(".")[0]
        for node in _top_level(tree.body):
            for name in _imported(node, package):
                top = name.partition(".")[0]
                if top in HEAVY:
                    self.heavy.append(HeavyImport(top, f"{path}:{node.lineno}"))
                elif top == self.top:
                    self._enter(name)

    def _enter(self, name: str) -> None:
        """A module of the same package, and the packages that it is in."""
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            inner = ".".join(parts[:end])
            path = module_file(self.files, inner)
            if inner in self.seen or path is None or not path.endswith(".py"):
                continue
            self.seen.add(inner)
            self.follow(inner, self.tree(path), path)


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run on import: also those in ``try`` and ``if``, but not what is for type checkers."""
    for node in body:
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _top_level(node.orelse)
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While | ast.ClassDef):
            for name in ("body", "orelse", "finalbody"):
                yield from _top_level(getattr(node, name, []))
            for handler in getattr(node, "handlers", []):
                yield from _top_level(handler.body)


def _imported(node: ast.stmt, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parts = package.split(".")
            base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
        yield base
        yield from (f"{base}.{alias.name}" for alias in node.names)


def _hooks(tree: ast.Module, path: str) -> Iterator[Hook]:
    for node in _top_level(tree.body):
        where = f"{path}:{node.lineno}"
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name).startswith("deepinfer_"):
                    yield Hook(alias.asname or alias.name, where)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            options = _hookimpl(node)
            if options is not None:
                given = node.args
                arguments = tuple(a.arg for a in (*given.posonlyargs, *given.args) if a.arg != "self")
                yield Hook(
                    str(options.get("specname") or node.name), where, arguments, bool(options.get("optionalhook"))
                )


def _hookimpl(node: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, object] | None:
    """The options of ``@hookimpl``; None for a function without it."""
    for decorator in node.decorator_list:
        call = decorator if isinstance(decorator, ast.Call) else None
        name = ast.unparse(call.func if call else decorator)
        if name.rpartition(".")[2] == "hookimpl":
            keywords = call.keywords if call else []
            return {k.arg: k.value.value for k in keywords if k.arg and isinstance(k.value, ast.Constant)}
    return None
