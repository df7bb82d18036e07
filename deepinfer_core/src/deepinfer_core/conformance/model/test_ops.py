"""The model calls what its Requirements name, and does not wait for the device (``spec/kernels.md`` 3.2)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from deepinfer_contracts import OPS
from deepinfer_core.conformance.failures import fail, require
from deepinfer_core.conformance.model.making import make_rig

pytestmark = pytest.mark.level("core")


class DeclaredOnly:
    """A backend that offers the ops of the Requirements. A call of another one fails the test.

    Optional ops that nobody declared are not there (None), as where a backend has none of its own.
    """

    def __init__(self, backend: Any, declared: frozenset[str]) -> None:
        self._backend = backend
        self.ops = {op: call for op, call in backend.ops.items() if op in declared}
        groups: dict[str, dict[str, Any]] = {}
        for op, record in OPS.items():
            group, _, member = op.partition(".")
            call = self.ops.get(op)
            if call is None and (record.required or record.default):
                call = _undeclared(op)
            groups.setdefault(group, {})[member] = call
        for group, members in groups.items():
            setattr(self, group, SimpleNamespace(**members))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def _undeclared(op: str) -> Any:
    def call(*args: Any, **options: Any) -> Any:
        fail(f"the model calls {op}, which its Requirements do not name", op=op)

    return call


@pytest.fixture(scope="module")
def declared(part: Any, checkpoint: Any) -> Any:
    """The model over a backend that offers what it declared."""
    return make_rig(part, checkpoint, wrap=lambda backend, match: DeclaredOnly(backend, match.requirements.ops))


def test_only_ops_of_the_requirements_are_called(declared: Any) -> None:
    """In loading, prefill in chunks, decode steps of one and of several rows, and a batch."""
    rig = declared
    length = 2 * rig.block_size + 3
    tokens = rig.prompt(length, seed=1)
    rig.rows(tokens, chunk=7, split=length - 6, q=min(2, rig.hints.backtrack))
    texts = [rig.open(rig.prompt(n, seed=n), room=2) for n in (1, 5, rig.block_size)]
    rig.run([(text, len(text.tokens)) for text in texts], prompt=True)
    for text in texts:
        text.tokens.append(0)
    rig.run([(text, 1) for text in texts], prompt=False)
    rig.close(*texts)


def test_declared_ops_are_there(plan: Any, part: Any) -> None:
    """Selection has compared them with the backend; an op that nobody has could never run."""
    missing = sorted(plan.match.requirements.ops - set(part.backend.ops))
    require(not missing, "the Requirements name ops that this backend lacks", got=missing, backend=part.backend.name)


def test_no_step_waits_for_the_device(rig: Any) -> None:
    """The engine launches a step while the one before it runs; a hidden wait would stop both."""
    guard = getattr(rig.backend, "no_sync", None)
    if guard is None:
        pytest.skip(f"backend {rig.backend.name} cannot see waits: it has no no_sync")
    text = rig.open(rig.prompt(rig.block_size + 2, seed=3))
    for prompt, q in ((True, rig.block_size), (False, 1), (False, 1)):
        inputs = rig.backend.bind_inputs(rig.pack([(text, q)], prompt=prompt))
        with guard():
            rig.model.logits(rig.model.forward(inputs, rig.caches))
        text.done += q
    rig.close(text)
