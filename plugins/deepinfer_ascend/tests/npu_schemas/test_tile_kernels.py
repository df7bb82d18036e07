"""What is called of tile-kernels, whose wheel has the code for Ascend: signatures are read from its sources, without
importing them, for they want a device."""

import ast
import inspect
import os
from pathlib import Path

import pytest

from deepinfer_ascend import emulation
from deepinfer_ascend.vendor.table import TABLE, UNBOUND

BOUND = {name: symbol for name, symbol in TABLE.items() if symbol.module.startswith("tile_kernels.")}
CHECKS = {"expand_to_mhc_fwd": "hidden % 128 == 0", "engram_gate_fwd": "hc_mult == 4"}
"""Function -> what it demands of sizes, as its source has it; the equivalent and the op demand the same."""


@pytest.fixture(scope="module")
def sources():
    """Its package. ``TILE_KERNELS`` names the folder that it was installed into."""
    folder = os.environ.get("TILE_KERNELS")
    if not folder:
        pytest.skip("TILE_KERNELS names no folder: nox -s npu_schemas installs tile-kernels into one")
    return Path(folder, "tile_kernels")


def definition(sources, name, module):
    """The function ``name`` that package ``module`` exports: its tree, and the file."""
    package = sources.joinpath(*module.split(".")[1:])
    exported = ast.parse((package / "__init__.py").read_text())
    [file] = [
        node.module.rpartition(".")[2]
        for node in ast.walk(exported)
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]
    ]
    path = package / f"{file}.py"
    [tree] = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.FunctionDef) and n.name == name]
    return tree, path


def told(tree):
    """(name, kind, default) of each parameter, defaults as source text."""
    places = [*tree.args.posonlyargs, *tree.args.args]
    defaults = [None] * (len(places) - len(tree.args.defaults)) + [ast.unparse(d) for d in tree.args.defaults]
    found = [(a.arg, inspect.Parameter.POSITIONAL_OR_KEYWORD, d) for a, d in zip(places, defaults, strict=True)]
    options = zip(tree.args.kwonlyargs, tree.args.kw_defaults, strict=True)
    return found + [(a.arg, inspect.Parameter.KEYWORD_ONLY, d and ast.unparse(d)) for a, d in options]


@pytest.mark.parametrize("name", BOUND)
def test_the_equivalent_has_the_names_kinds_and_defaults_of_the_library(sources, name):
    tree, _ = definition(sources, BOUND[name].attribute, BOUND[name].module)
    empty = inspect.Parameter.empty
    mine = inspect.signature(emulation._found(name)).parameters.values()
    assert [(p.name, p.kind, None if p.default is empty else repr(p.default)) for p in mine] == told(tree)


@pytest.mark.parametrize("function", CHECKS)
def test_what_it_demands_of_sizes_stands_in_its_source(sources, function):
    [symbol] = [symbol for symbol in BOUND.values() if symbol.attribute == function]
    _, path = definition(sources, function, symbol.module)
    texts = (path, path.with_name(path.name.replace("_kernel", "_asc")))
    assert any(CHECKS[function] in text.read_text() for text in texts if text.is_file())


def test_symbols_that_are_left_unbound_exist_there(sources):
    exported = {
        alias.name
        for package in ("quant", "moe", "mhc", "engram", "transform")
        for node in ast.walk(ast.parse((sources / package / "__init__.py").read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert {name.partition(".")[2] for name in UNBOUND if name.startswith("tile_kernels.")} <= exported
