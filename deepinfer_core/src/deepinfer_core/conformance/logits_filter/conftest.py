"""Fixtures of the tests of logits filters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from deepinfer_core.conformance.part import Part
from deepinfer_core.conformance.part_fixture import part

__all__ = ["part"]


@pytest.fixture
def make_filter(part: Part) -> Callable[..., Any]:
    """Make the filter for a vocabulary: ``make_filter(33)``; ``params``: instead of those of ``--params``."""

    def make(vocab_size: int, params: dict[str, Any] | None = None) -> Any:
        chosen = dict(part.params) if params is None else params
        return part.hooks.logits_filter_create(part.owner, chosen, vocab_size)

    return make
