"""A backend is created, says what it is, and is closed."""

from __future__ import annotations

from typing import Any

import pytest

from deepinfer_core.conformance.failures import require, require_equal, require_no_error
from deepinfer_core.conformance.subject import Subject
from deepinfer_core.interfaces import Backend
from deepinfer_core.plugins.hooks import Hooks

pytestmark = pytest.mark.level("smoke")


def test_backend_created_implements_the_protocol(backend: Any) -> None:
    require(isinstance(backend, Backend), "the backend lacks members of the protocol Backend")


def test_backend_created_has_the_name_that_was_asked_for(backend: Any, subject: Subject) -> None:
    require_equal(backend.name, subject.name, "the backend has another name than its entry point")


def test_close_twice_is_one_close(subject: Subject, hooks: Hooks) -> None:
    made = hooks.backend_create(subject.record, None, hooks.manager.config)
    with require_no_error("close() raises"):
        made.close()
    with require_no_error("a second close() raises; closing is idempotent"):
        made.close()


def test_backend_created_behind_a_closed_one_works(subject: Subject, hooks: Hooks) -> None:
    hooks.backend_create(subject.record, None, hooks.manager.config).close()
    again = hooks.backend_create(subject.record, None, hooks.manager.config)
    try:
        require(set(again.ops), "a second backend has no ops")
    finally:
        again.close()
