"""The fixture ``part``, for the conftest of each kind that is no backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deepinfer_core.conformance.options import option
from deepinfer_core.conformance.part import Part, params_of
from deepinfer_core.conformance.subject import Subject
from deepinfer_core.plugins.manager import PluginManager


@pytest.fixture(scope="session")
def part(pytestconfig: pytest.Config, manager: PluginManager, subject: Subject) -> Iterator[Part]:
    """The plugin under test with what it is made with."""
    made = Part(manager, subject.record, params_of(pytestconfig), str(option(pytestconfig, "on")))
    yield made
    made.close()
