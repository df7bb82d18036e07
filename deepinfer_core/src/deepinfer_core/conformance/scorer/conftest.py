"""Fixtures of the tests of scorers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from deepinfer_core.conformance.part import Part
from deepinfer_core.conformance.part_fixture import part

__all__ = ["part"]


@pytest.fixture
def make_scorer(part: Part) -> Callable[..., Any]:
    """Make the scorer; ``params``: instead of those of ``--params``."""

    def make(params: dict[str, Any] | None = None) -> Any:
        return part.hooks.scorer_create(part.owner, dict(part.params) if params is None else params)

    return make
