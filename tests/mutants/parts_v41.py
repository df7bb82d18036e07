"""Faults of the shipped model: what the toy has no part for, weights, drafts and ops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
from mutant import Mutant


@contextmanager
def _names_one_problem() -> Iterator[None]:
    from deepinfer_core.errors import CheckpointError
    from deepinfer_v41.model import V41Model

    before = V41Model.check_checkpoint

    def check(self: Any, path: Any) -> str:
        try:
            return before(self, path)
        except CheckpointError as error:
            raise CheckpointError(str(error)[:60]) from error

    V41Model.check_checkpoint = check  # type: ignore[method-assign]
    try:
        yield
    finally:
        V41Model.check_checkpoint = before  # type: ignore[method-assign]


@contextmanager
def _drafts_write_rings() -> Iterator[None]:
    from deepinfer_v41.model import V41Model

    before = V41Model.draft

    def draft(self: Any, hidden: Any, inputs: Any, sampled: Any, accepted: Any, caches: Any) -> Any:
        block = before(self, hidden, inputs, sampled, accepted, caches)
        ring = caches.view("swa", 0).tensor
        ring[inputs.swa_slot_idx.long()] = ring[inputs.swa_slot_idx.long()].flip(1)
        return block

    V41Model.draft = draft  # type: ignore[method-assign]
    try:
        yield
    finally:
        V41Model.draft = before  # type: ignore[method-assign]


@contextmanager
def _forgets_an_op() -> Iterator[None]:
    from deepinfer_core.plugins.hooks import Hooks

    before = Hooks.model_match

    def match(self: Any, owner: Any, card: Any) -> Any:
        found = before(self, owner, card)
        needs = found.requirements
        return attrs.evolve(found, requirements=attrs.evolve(needs, ops=needs.ops - {"engram.gate"}))

    Hooks.model_match = match  # type: ignore[method-assign]
    try:
        yield
    finally:
        Hooks.model_match = before  # type: ignore[method-assign]


def v41(name: str, caught_by: str, apply: Any, test: str) -> Mutant:
    return Mutant(
        name=name, kind="model", subject="deepseek_v41", apply=apply, caught_by=f"model/{caught_by}.py", test=test
    )


MUTANTS = [
    v41("load_names_one_problem", "test_load", _names_one_problem, "every_missing"),
    v41("drafts_write_into_rings", "test_drafts", _drafts_write_rings, "does_not_change"),
    v41("requirements_forget_an_op", "test_ops", _forgets_an_op, "only_ops"),
]
