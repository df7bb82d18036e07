"""What the backend says of itself is what its manifest claims (``spec/kernels.md`` 3.2)."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from deepinfer_contracts import CACHE_FORMATS, FEATURES
from deepinfer_core.conformance.failures import fail, require, require_equal
from deepinfer_core.conformance.subject import Subject
from deepinfer_core.types import Capabilities

pytestmark = pytest.mark.level("smoke")


def test_capabilities_are_of_this_backend(backend: Any, subject: Subject) -> None:
    found = backend.capabilities
    require(isinstance(found, Capabilities), "capabilities are no Capabilities", got=type(found).__name__)
    require_equal(found.name, subject.name, "the capabilities are those of another backend")
    require(found.device_type, "capabilities.device_type is empty")
    if subject.record.table.arch:
        require(found.arch in subject.record.table.arch, "capabilities.arch is not in the manifest", got=found.arch)


def test_capabilities_say_whether_the_device_is_emulated(backend: Any, subject: Subject) -> None:
    """Results are marked by it, and rules of the kit are others for an emulation."""
    asked = subject.manager.config.emulate
    require_equal(backend.capabilities.emulated, asked, "capabilities.emulated is not what was asked for")


def test_capabilities_are_json(backend: Any) -> None:
    """They go into run reports."""
    try:
        json.dumps(attrs.asdict(backend.capabilities), default=_plain)
    except (TypeError, ValueError) as exc:
        fail("the capabilities are no JSON", got=str(exc))


def test_features_are_those_that_are_claimed(backend: Any, subject: Subject) -> None:
    _compare(set(backend.capabilities.features), subject, "feature:", FEATURES)


def test_cache_formats_are_those_that_are_claimed(backend: Any, subject: Subject) -> None:
    found = backend.capabilities
    _compare(
        set(found.kv_formats) | set(found.index_formats),
        subject,
        "kv:",
        {name for names in CACHE_FORMATS.values() for name in names},
    )


def test_graphs_are_said_twice_alike(backend: Any) -> None:
    found = backend.capabilities
    require_equal("graphs" in found.features, found.graph, "the feature graphs and capabilities.graph differ")


def test_batch_invariance_is_said_twice_alike(backend: Any) -> None:
    found = backend.capabilities
    told = bool(found.determinism.get("batch_invariant", False))
    require_equal("batch_invariant" in found.features, told, "the feature batch_invariant and determinism differ")


def _compare(found: set[str], subject: Subject, prefix: str, known: Any) -> None:
    __tracebackhide__ = True
    claimed = {claim.removeprefix(prefix) for claim in subject.claims if claim.startswith(prefix)}
    unknown = sorted(found - set(known))
    require(not unknown, f"capabilities name a {prefix.rstrip(':')} that does not exist", got=unknown)
    require(not claimed - found, "claimed, and not among the capabilities", got=sorted(claimed - found))
    require(not found - claimed, "among the capabilities, and not claimed", got=sorted(found - claimed))


def _plain(value: object) -> object:
    if isinstance(value, frozenset | set | tuple):
        return sorted(map(str, value))
    raise TypeError(f"{type(value).__name__} is no JSON")
