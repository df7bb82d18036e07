"""Every op of the table has a test in the kit, found by its marker ``op``."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

from deepinfer_contracts import OPS
from deepinfer_core.conformance import backend as kit


def marks_of(thing: Any) -> Iterator[Any]:
    found = getattr(thing, "pytestmark", [])
    yield from found if isinstance(found, list) else [found]


def ops_of(marks: Any) -> set[str]:
    return {op for mark in marks if mark.name == "op" for op in mark.args}


def marked_ops() -> dict[str, set[str]]:
    """Op id -> names of the tests that judge it."""
    found: dict[str, set[str]] = {}
    for info in pkgutil.iter_modules(kit.__path__):
        if not info.name.startswith("test_"):
            continue
        module = importlib.import_module(f"{kit.__name__}.{info.name}")
        for name, test in vars(module).items():
            if name.startswith("test_") and callable(test):
                for op in ops_of([*marks_of(test), *marks_of(module)]):
                    found.setdefault(op, set()).add(f"{info.name}::{name}")
    return found


def test_every_op_has_a_test(pytestconfig: pytest.Config) -> None:
    for marker in ("op", "needs", "level", "hook"):  # the kit registers them in its own runs
        pytestconfig.addinivalue_line("markers", f"{marker}: of the conformance kit")
    marked = marked_ops()
    assert sorted(set(OPS) - set(marked)) == []
    assert sorted(set(marked) - set(OPS)) == []
    assert marked["index.topk"] >= {"test_indexer::test_topk_takes_the_best_and_of_equals_the_first"}
