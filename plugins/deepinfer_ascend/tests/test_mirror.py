"""``ops`` is the mirror of ``deepinfer_cpu.ops`` and ``deepinfer_cuda.ops``: the same files, called the same way."""

import ast
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

from deepinfer_ascend import ops
from deepinfer_ascend.backend import op_table
from deepinfer_ascend.jit import serving
from deepinfer_ascend.plain import plain_op

FILES = sorted(found.name for found in pkgutil.iter_modules(ops.__path__))


def file_of(function):
    return inspect.unwrap(function).__module__.rpartition(".")[2]


def told(function):
    """Names, order, kinds and defaults."""
    return [(p.name, p.kind, repr(p.default)) for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("name", FILES)
def test_a_file_has_the_ops_of_the_file_of_cpu(name):
    table = importlib.import_module(f"{ops.__name__}.{name}").OPS
    assert table, f"{name}.py gives no op"
    assert {op: file_of(plain_op(op)) for op in table} == dict.fromkeys(table, name)


@pytest.mark.parametrize("op", sorted(op_table()))
def test_an_op_is_called_as_that_of_cpu(op):
    assert told(op_table()[op]) == told(plain_op(op))


@pytest.mark.parametrize("op", sorted(op_table()))
def test_an_op_is_called_as_that_of_cuda(op):
    backend = pytest.importorskip("deepinfer_cuda.backend", reason="deepinfer-cuda is not installed")
    theirs = backend.op_table().get(op)
    if theirs is None:
        pytest.skip(f"deepinfer-cuda leaves {op} to the plain op")
    assert told(op_table()[op]) == told(theirs)


def taken(call):
    """Names of the arguments, after the one that a lowered kernel's op has before them."""
    names = [p.name for p in inspect.signature(call).parameters.values() if p.kind is not p.VAR_KEYWORD]
    return names[1:], any(p.kind is p.VAR_KEYWORD for p in inspect.signature(call).parameters.values())


@pytest.mark.parametrize("module", serving.MODULES)
def test_an_op_that_a_lowered_kernel_serves_takes_the_same_names(module):
    for op, call in importlib.import_module(f"{serving.__name__}.{module}").SERVED.items():
        names, more = taken(call)
        theirs = list(inspect.signature(plain_op(op)).parameters)
        assert names == (theirs[: len(names)] if more else theirs), op


def test_the_comparison_of_signatures_sees_another_default_and_another_order():
    right = told(lambda x, *, eps=1.0, out=None: x)
    for wrong in (
        lambda x, *, eps=2.0, out=None: x,
        lambda x, *, out=None, eps=1.0: x,
        lambda x, eps=1.0, *, out=None: x,
        lambda x, y, *, eps=1.0, out=None: x,
    ):
        assert told(wrong) != right


def sources():
    for path in Path(ops.__file__).parents[1].rglob("*.py"):
        yield path, ast.parse(path.read_text())


def test_no_source_imports_another_plugin():
    for path, tree in sources():
        for node in ast.walk(tree):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            others = {"deepinfer_cpu", "deepinfer_cuda", "deepinfer_v41", "deepinfer_samplers"}
            foreign = [name for name in names if name.split(".")[0] in others]
            assert not foreign, f"{path.name} imports {foreign}"


def test_no_source_imports_a_library_of_the_vendor():
    """They are looked up by name when an op calls them; ``import torch_npu`` alone breaks a host without CANN."""
    for path, tree in sources():
        for node in ast.walk(tree):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            vendors = {"torch_npu", "deep_gemm", "deep_ep", "flash_mla", "deep_select", "tile_kernels", "acl"}
            assert not vendors & {name.split(".")[0] for name in names}, path.name
