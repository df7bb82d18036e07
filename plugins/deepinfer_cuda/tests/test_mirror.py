"""``ops`` is the mirror of ``deepinfer_cpu.ops``: the same files, the same ops in each, called the same way."""

import ast
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

from deepinfer_contracts import OPS
from deepinfer_cuda import ops
from deepinfer_cuda.backend import op_table
from deepinfer_cuda.plain import plain_op

FILES = sorted(found.name for found in pkgutil.iter_modules(ops.__path__))


def file_of(function):
    return inspect.unwrap(function).__module__.rpartition(".")[2]


def files_of_cpu():
    return {file_of(plain_op(op)) for op in OPS if _has(op)}


def _has(op):
    try:
        plain_op(op)
    except KeyError:
        return False
    return True


def test_files_are_named_as_those_of_cpu():
    assert set(FILES) <= files_of_cpu()


def test_every_file_of_cpu_is_there():
    assert sorted(files_of_cpu() - set(FILES)) == []


@pytest.mark.parametrize("name", FILES)
def test_a_file_has_the_ops_of_the_file_of_cpu_or_says_why_not(name):
    module = importlib.import_module(f"{ops.__name__}.{name}")
    delegated = getattr(module, "DELEGATED", {})
    assert all(reason.strip() for reason in delegated.values())
    assert not set(module.OPS) & set(delegated)
    known = {op for op in (*module.OPS, *delegated) if _has(op)}  # the others are optional, and cpu has none of them
    assert known == {op for op in OPS if _has(op) and file_of(plain_op(op)) == name}
    assert set(delegated) <= known


@pytest.mark.parametrize("op", sorted(op_table()))
def test_an_op_is_called_as_the_table_of_ops_says(op):
    table = parsed(OPS[op].signature)
    assert told(inspect.signature(op_table()[op]), table) == told(table, table)


def test_the_comparison_of_signatures_sees_another_default_and_another_order():
    table = parsed("(x, *, eps=1.0, out=None)")
    assert told(inspect.signature(lambda x, *, eps=1.0, out=None, extra=3: x), table) == told(table, table)
    for wrong in (
        lambda x, *, eps=2.0, out=None: x,
        lambda x, *, out=None, eps=1.0: x,
        lambda x, eps=1.0, *, out=None: x,
        lambda x, y, *, eps=1.0, out=None: x,
    ):
        assert told(inspect.signature(wrong), table) != told(table, table)


def told(signature, table):
    """Names, order, kinds and defaults; a keyword of the backend's own, which nobody has to give, is left out."""
    return [
        (p.name, p.kind, "" if p.default is p.empty else _text(p.default))
        for p in signature.parameters.values()
        if p.name in table.parameters or p.kind is not p.KEYWORD_ONLY or p.default is p.empty
    ]


def parsed(text):
    """The signature that a text such as ``(x, *, eps, out=None)`` is."""
    arguments = ast.parse(f"def op{text}: ...").body[0].args
    kinds = [(a, inspect.Parameter.POSITIONAL_OR_KEYWORD) for a in arguments.args]
    defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + arguments.defaults + arguments.kw_defaults
    kinds += [(a, inspect.Parameter.KEYWORD_ONLY) for a in arguments.kwonlyargs]
    return inspect.Signature(
        [
            inspect.Parameter(a.arg, kind, default=inspect.Parameter.empty if default is None else _Shown(default))
            for (a, kind), default in zip(kinds, defaults, strict=True)
        ]
    )


class _Shown:
    """A default as the table writes it."""

    def __init__(self, node):
        self.node = node


def _text(default):
    return ast.unparse(default.node) if isinstance(default, _Shown) else repr(default)


def test_no_source_names_the_device_of_another_plugin_or_imports_one():
    package = Path(ops.__file__).parents[1]
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            foreign = [n for n in names if n.split(".")[0] in {"deepinfer_cpu", "deepinfer_v41", "deepinfer_samplers"}]
            assert not foreign, f"{path.name} imports {foreign}"
