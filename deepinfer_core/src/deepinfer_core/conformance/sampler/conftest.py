"""Fixtures of the sampler tests: samplers of any vocabulary, made through the hook as an engine makes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import pytest
from attrs import define

from deepinfer_core.conformance.failures import fail
from deepinfer_core.conformance.part import Part, not_offered, settings
from deepinfer_core.conformance.part_fixture import part
from deepinfer_core.conformance.sampler.steps import MAX_ROWS, Bench
from deepinfer_core.errors import DeepInferError, NotSupported

__all__ = ["part"]


@define(eq=False, slots=False)
class Maker:
    """Makes samplers of the plugin."""

    part: Part

    @cached_property
    def samples_rows(self) -> bool:
        """Whether the plugin gives a row sampler, which single requests name, and not one of whole steps."""
        try:
            self.whole(8)
        except NotSupported:
            self.rows(8)
            return True
        return False

    def whole(self, vocab_size: int, **given: Any) -> Any:
        part = self.part
        config = settings(sampler=part.owner.name, **given)
        return part.hooks.sampler_create(
            part.owner, part.owner.name, dict(part.params), vocab_size, config, part.backend
        )

    def rows(self, vocab_size: int, params: dict[str, Any] | None = None) -> Any:
        part = self.part
        params = dict(part.params) if params is None else params
        return part.hooks.row_sampler_create(part.owner, params, vocab_size, settings(), part.backend)


@pytest.fixture(scope="session")
def maker(part: Part) -> Maker:
    """Makes samplers of the plugin; one is made now, so that a hook which makes none fails once."""
    maker = Maker(part)
    _ = maker.samples_rows
    return maker


@pytest.fixture
def bench(maker: Maker) -> Callable[..., Bench]:
    """Make a whole-step sampler for a vocabulary: ``bench(8)``, ``bench(8, draft_tokens=2, verify="coupled")``."""
    if maker.samples_rows:
        pytest.skip("a row sampler: it has no steps of its own")

    def make(vocab_size: int, **given: Any) -> Bench:
        try:
            sampler = maker.whole(vocab_size, **given)
            if hasattr(sampler, "reserve"):
                sampler.reserve(MAX_ROWS)
        except NotSupported as error:
            not_offered(error.what)
        except DeepInferError as error:
            fail(f"no sampler could be made for a vocabulary of {vocab_size}", settings=given, got=error)
        return Bench(sampler, maker.part.backend, vocab_size)

    return make


@pytest.fixture
def row_sampler(maker: Maker) -> Callable[..., Any]:
    """Make a row sampler for a vocabulary."""
    if not maker.samples_rows:
        pytest.skip("it samples whole steps")
    return maker.rows
