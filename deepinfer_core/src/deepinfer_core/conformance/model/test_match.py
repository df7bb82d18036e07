"""Which checkpoints the plugin takes, and what it asks of a backend (``deepinfer_model_match``)."""

from __future__ import annotations

import copy
import shutil
from typing import Any

import pytest

from deepinfer_contracts import CACHE_FORMATS, FEATURES, OPS
from deepinfer_core.conformance.failures import fail, require, require_equal
from deepinfer_core.conformance.model.making import card_of, stranger
from deepinfer_core.errors import DeepInferError
from deepinfer_core.types import ModelCard

pytestmark = [pytest.mark.level("smoke"), pytest.mark.hook("deepinfer_model_match")]


def raw_match(part: Any, card: ModelCard) -> Any:
    """What the hook returns or raises, without the core in between."""
    found = part.manager.hook(part.owner, "deepinfer_model_match")(card=card)
    return found[0] if found else None


def test_own_checkpoint_is_matched(part: Any, card: Any) -> None:
    require(
        card.architecture in part.owner.table.architectures,
        "the manifest does not list the architecture of the checkpoint",
        architecture=card.architecture,
        manifest=part.owner.table.architectures,
    )
    match = part.hooks.model_match(part.owner, card)
    require(match is not None, "its own architecture is not matched", architecture=card.architecture)
    require(isinstance(match.score, int), "score is no integer", got=match.score)
    require(match.name, "a match without a name")


def test_checkpoint_of_a_stranger_is_not_matched(part: Any, card: Any) -> None:
    require_equal(raw_match(part, stranger(card)), None, "another architecture is matched")


def test_architectures_of_the_manifest_are_not_another_case(part: Any, card: Any) -> None:
    other = card.architecture.upper()
    if other != card.architecture:
        changed = ModelCard(card.path, other, card.model_type, card.config)
        require_equal(raw_match(part, changed), None, "an architecture of another spelling is matched")


def test_match_reads_no_weights(part: Any, card: Any, checkpoint: Any, tmp_path: Any) -> None:
    """It may be asked for a checkpoint whose weights are not there yet."""
    for path in checkpoint.iterdir():
        if path.is_file() and path.suffix in (".json", ".jinja", ".txt", ".model"):
            shutil.copy(path, tmp_path)
    require(raw_match(part, card_of(tmp_path)) is not None, "without weights the checkpoint is not matched")


def test_match_is_the_same_again_and_leaves_the_card_as_it_is(part: Any, card: Any) -> None:
    before = copy.deepcopy(dict(card.config))
    first, second = raw_match(part, card), raw_match(part, card)
    require_equal(dict(card.config), before, "the hook changed the card")
    require_equal(
        (first.name, first.score, first.requirements),
        (second.name, second.score, second.requirements),
        "asked again, it answers otherwise",
    )


def test_requirements_are_names_of_the_contracts(part: Any, card: Any) -> None:
    needs = raw_match(part, card).requirements
    formats = {name for kind in CACHE_FORMATS.values() for name in kind} | {"f32", "bf16"}
    for given, known, what in (
        (needs.ops, OPS, "op"),
        (needs.formats, formats, "cache format"),
        (needs.features_required | needs.features_preferred, FEATURES, "feature"),
    ):
        unknown = sorted(set(given) - set(known))
        require(not unknown, f"Requirements name an unknown {what}", got=unknown)
    bad = {name: value for name, value in needs.limits.items() if not isinstance(value, int) or value < 0}
    require(not bad, "a limit of the Requirements is no size", got=bad)


@pytest.mark.level("core")
def test_broken_configuration_is_a_typed_error_or_no_match(part: Any, card: Any) -> None:
    """Every field of ``config.json`` in turn, with a value of another type; and none at all."""
    fields: list[tuple[str, ...]] = [(name,) for name in card.config]
    fields += [(a, b) for a, inner in card.config.items() if isinstance(inner, dict) for b in inner]
    for place in [(), *fields]:
        config = copy.deepcopy(dict(card.config)) if place else {}
        inner = config
        for name in place[:-1]:
            inner = inner[name]
        if place:
            inner[place[-1]] = {"not": ["what", "it", "was"]}
        try:
            raw_match(part, ModelCard(card.path, card.architecture, card.model_type, config))
        except DeepInferError as error:
            require(error.what, "an error without a text", field=".".join(place))
        except Exception as error:
            fail("a broken configuration is an untyped error", field=".".join(place) or "all", got=repr(error))
