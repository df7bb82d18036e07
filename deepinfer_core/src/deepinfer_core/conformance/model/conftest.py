"""Fixtures of the model tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core.conformance.model.making import Plan, card_of, make_rig, plan_of
from deepinfer_core.conformance.model.rig import Rig
from deepinfer_core.conformance.options import option
from deepinfer_core.conformance.part import Part
from deepinfer_core.conformance.part_fixture import part
from deepinfer_core.types import ModelCard

__all__ = ["part"]


@pytest.fixture(scope="session")
def checkpoint(part: Part, pytestconfig: pytest.Config) -> Path:
    """The folder of ``--checkpoint``, or the checkpoint that the plugin ships."""
    given = option(pytestconfig, "checkpoint")
    if given is not None:
        return Path(str(given)).resolve()
    manifest, shipped = part.owner.manifest, part.owner.table.checkpoint
    if manifest is None or shipped is None:
        pytest.skip("it ships no checkpoint: give one with --checkpoint DIR")
    return manifest.path.parent / shipped


@pytest.fixture(scope="session")
def card(checkpoint: Path) -> ModelCard:
    """``config.json`` of the checkpoint."""
    return card_of(checkpoint)


@pytest.fixture(scope="session")
def plan(part: Part, card: ModelCard) -> Plan:
    """What the hooks say before a model is made."""
    return plan_of(part, card)


@pytest.fixture(scope="session")
def rig(part: Part, checkpoint: Path) -> Rig:
    """The loaded model over caches of its own, without drafts."""
    return make_rig(part, checkpoint)


@pytest.fixture(scope="session")
def rig_with(part: Part, checkpoint: Path) -> Callable[..., Rig]:
    """Make another one: ``rig_with(draft_tokens=2)``."""

    def make(**given: Any) -> Rig:
        return make_rig(part, checkpoint, **given)

    return make
