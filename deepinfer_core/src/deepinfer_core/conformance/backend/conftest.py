"""Fixtures of the backend's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deepinfer_contracts import OPS
from deepinfer_core.conformance.failures import fail
from deepinfer_core.conformance.run import NOTES
from deepinfer_core.conformance.subject import Subject
from deepinfer_core.errors import BackendError
from deepinfer_core.plugins.hooks import Hooks


@pytest.fixture(scope="session")
def backend(subject: Subject, hooks: Hooks, pytestconfig: pytest.Config) -> Iterator[Any]:
    """The backend under test, created once: ``backend.ops["norm.rms"]``."""
    try:
        made = hooks.backend_create(subject.record, None, hooks.manager.config)
    except BackendError as exc:
        if hasattr(pytestconfig, "workerinput"):
            raise
        pytest.exit(str(exc), returncode=exc.exit_status)
    yield made
    made.close()


@pytest.fixture(scope="session")
def device(backend: Any) -> Any:
    """The torch device of the backend."""
    import torch

    return torch.device(backend.device)


@pytest.fixture(autouse=True)
def _offered(request: pytest.FixtureRequest, subject: Subject) -> None:
    """An op that ``cpu`` would fill in, and that the backend says it does not have, is skipped; a claimed one fails."""
    wanted = [need for mark in request.node.iter_markers("needs") for need in mark.args if need.startswith("op:")]
    named = [op for mark in request.node.iter_markers("op") for op in mark.args]
    wanted += [f"op:{op}" for op in named if not OPS[op].required]
    if not wanted:
        return
    ops = request.getfixturevalue("backend").ops
    for need in wanted:
        if need.removeprefix("op:") not in ops:
            if need in subject.claims:
                fail("a claimed op is not there", op=need.removeprefix("op:"))
            pytest.skip(f"not offered: {need}")


@pytest.fixture
def guarded(request: pytest.FixtureRequest, device: Any) -> Any:
    """``guarded(shape, dtype)`` and ``guarded.of(tensor, frozen=False)``: tensors inside buffers of known bytes, which
    are looked at behind the test (:mod:`deepinfer_core.conformance.guards`)."""
    from deepinfer_core.conformance.guards import Guards

    guards = Guards(device)
    request.node.stash[NOTES]["checks"].append(guards.verify)
    return guards


@pytest.fixture
def repeat(backend: Any) -> Callable[..., Any]:
    """``repeat(op_id, *args, **kwargs)``: run an op twice, compare bit for bit, return the second result.

    The first run is on deep copies, the second on the arguments themselves; ``out`` is poisoned before each.
    ``defined=`` names the part of a result that is compared (:mod:`deepinfer_core.conformance.repeats`).
    """
    from deepinfer_core.conformance.repeats import run_twice

    def twice(op: str, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return run_twice(backend.ops[op], *args, op=op, **kwargs)

    return twice
