"""Fixtures of every kind."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import pytest

from deepinfer_core.conformance.run import NOTES, SUBJECT
from deepinfer_core.conformance.selection import kit_id
from deepinfer_core.conformance.subject import Subject
from deepinfer_core.plugins.hooks import Hooks
from deepinfer_core.plugins.manager import PluginManager


@pytest.fixture(scope="session")
def subject(pytestconfig: pytest.Config) -> Subject:
    """The plugin under test: ``record``, ``manifest``, ``claims``, ``kind``, ``name``."""
    return pytestconfig.stash[SUBJECT]


@pytest.fixture(scope="session")
def manager(subject: Subject) -> PluginManager:
    """Plugins of this environment, with default settings; the one under test is loaded."""
    subject.manager.require(subject.kind, subject.name)
    return subject.manager


@pytest.fixture(scope="session")
def hooks(manager: PluginManager) -> Hooks:
    """Calls hooks of loaded plugins and checks what comes back, as the engine does."""
    return Hooks(manager)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> Callable[[int], Any]:
    """``rng(seed)``: a ``torch.Generator`` of the host; the seed is printed if the test fails."""

    def make(seed: int) -> Any:
        import torch

        request.node.stash[NOTES]["seeds"].append(seed)
        return torch.Generator().manual_seed(seed)

    return make


@pytest.fixture
def generator(request: pytest.FixtureRequest, rng: Callable[[int], Any]) -> Any:
    """A ``torch.Generator`` of the host, seeded by the name of the test."""
    return rng(zlib.crc32(kit_id(request.node).encode()) & 0x7FFFFFFF)


@pytest.fixture
def tolerance(request: pytest.FixtureRequest) -> Callable[..., Callable[..., Any]]:
    """``tolerance(op_id)``: a check ``(actual, reference, **context)`` in the class of the op table.

    ``tolerance(op_id, output="lse")`` takes the class of that output (``tolerances.OUTPUT_CLASSES``; ``bytes`` is class
    B), ``tolerance(op_id, "U(2)")`` any other. What is measured goes
    into the report; ``context`` is told in :func:`deepinfer_core.conformance.tolerances.check`.
    """
    from deepinfer_core.conformance import tolerances

    notes = request.node.stash[NOTES]

    def of(op: str, spec: str | None = None, *, output: str = "") -> Callable[..., Any]:
        chosen = spec if spec is not None else tolerances.class_of(op, output)

        def check(actual: Any, reference: Any, **context: Any) -> Any:
            __tracebackhide__ = True
            if notes["seeds"]:
                context.setdefault("seed", notes["seeds"][-1])
            context = {"op": op, **({"output": output} if output else {}), **context}
            measured = tolerances.check(actual, reference, chosen, **context)
            held = notes["tolerances"].get((op, output, chosen))
            if held is None or measured.value > held["measured"]:
                notes["tolerances"][op, output, chosen] = {
                    "op": op,
                    "output": output,
                    "class": chosen,
                    "measured": measured.value,
                    "limit": measured.limit,
                }
            return measured

        return check

    return of
