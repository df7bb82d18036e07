"""Loading a checkpoint, and refusing a broken one with every problem listed at once (``interfaces.Model``)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core.conformance.failures import fail, require
from deepinfer_core.conformance.model.broken import (
    Tensors,
    broken_copy,
    shard_of,
    truncated_copy,
    without,
    without_weights,
)
from deepinfer_core.conformance.model.making import Plan, make_model
from deepinfer_core.conformance.part import Part
from deepinfer_core.errors import CheckpointError, DeepInferError, ModelError
from deepinfer_core.interfaces import Model

pytestmark = [pytest.mark.level("core"), pytest.mark.hook("deepinfer_model_create")]


@pytest.fixture(scope="module")
def shard(checkpoint: Path) -> Path:
    """The safetensors file of the checkpoint that is made worse."""
    found = shard_of(checkpoint)
    if found is None:
        pytest.skip("the checkpoint has no safetensors file")
    return found


@pytest.fixture(scope="module")
def refusal(part: Part, plan: Plan) -> Callable[[Path], DeepInferError | None]:
    """``refusal(folder)``: what loading it says, or None where it loads. The header check comes first, where it is."""

    def ask(folder: Path) -> DeepInferError | None:
        made = make_model(part, plan)
        check = getattr(made, "check_checkpoint", None)
        try:
            if check is not None:
                text = check(folder)
                require(isinstance(text, str) and text, "check_checkpoint returned no text", got=repr(text))
                return None
            made.load(folder)
        except DeepInferError as error:
            return error
        except Exception as error:
            fail("a broken checkpoint is an untyped error", got=f"{type(error).__name__}: {error}")
        return None

    return ask


@pytest.fixture(scope="module")
def needed(shard: Path, refusal: Any, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Names of tensors without which the checkpoint does not load; others may belong to parts that are left out."""
    names = sorted(Tensors.read(shard).entries)
    candidates = dict.fromkeys(names[len(names) * i // 6] for i in range(6))
    found = []
    for name in candidates:
        folder = broken_copy(shard, tmp_path_factory.mktemp("checkpoint"), without([name]))
        if refusal(folder) is not None:
            found.append(name)
    require(len(found) >= 2, "tensors were taken out of the checkpoint, and nobody missed them", tried=list(candidates))
    return found


@pytest.mark.level("smoke")
def test_model_without_weights_does_not_run(part: Part, plan: Plan, rig: Any) -> None:
    made = make_model(part, plan)
    require(isinstance(made, Model), "it is no Model")
    text = rig.open([0, 1])
    inputs = rig.backend.bind_inputs(rig.pack([(text, 2)], prompt=True))
    rig.close(text)
    try:
        made.forward(inputs, rig.caches)
    except Exception:  # the engine always loads first: that it stops is enough
        return
    fail("forward ran without weights")


@pytest.mark.level("smoke")
def test_good_checkpoint_is_found_good(refusal: Any, checkpoint: Path) -> None:
    error = refusal(checkpoint)
    require(error is None, "the checkpoint is refused", got=error)


def test_every_missing_tensor_is_named_in_one_error(
    shard: Path, needed: list[str], refusal: Any, tmp_path: Path
) -> None:
    error = refusal(broken_copy(shard, tmp_path, without(needed)))
    require(
        isinstance(error, CheckpointError), "a checkpoint with missing tensors is no CheckpointError", got=repr(error)
    )
    lost = [name for name in needed if name not in str(error)]
    require(not lost, "an error names only some of the missing tensors", missing=needed, not_named=lost, got=error)


def test_wrong_shape_and_missing_tensor_are_named_in_one_error(
    shard: Path, needed: list[str], refusal: Any, tmp_path: Path
) -> None:
    shaped = next((name for name in needed if len(Tensors.read(shard).entries[name]["shape"]) > 1), None)
    if shaped is None:
        pytest.skip("none of the tensors has two dimensions")
    missing = next(name for name in needed if name != shaped)

    def edit(tensors: Tensors) -> None:
        tensors.drop(missing)
        tensors.flatten(shaped)

    error = refusal(broken_copy(shard, tmp_path, edit))
    require(isinstance(error, CheckpointError), "a tensor of a wrong shape is no CheckpointError", got=repr(error))
    lost = [name for name in (shaped, missing) if name not in str(error)]
    require(not lost, "an error names only some of the problems", not_named=lost, got=error)


def test_truncated_file_is_a_checkpoint_error_with_its_name(shard: Path, refusal: Any, tmp_path: Path) -> None:
    error = refusal(truncated_copy(shard, tmp_path))
    require(isinstance(error, CheckpointError), "a truncated file is no CheckpointError", got=repr(error))
    require(shard.name in str(error), "the error does not name the file", file=shard.name, got=error)


def test_folder_without_weights_is_a_typed_error(shard: Path, refusal: Any, tmp_path: Path) -> None:
    error = refusal(without_weights(shard, tmp_path))
    require(isinstance(error, ModelError), "a folder without weights is no ModelError", got=repr(error))


def test_load_refuses_what_the_check_of_headers_refuses(
    part: Part, plan: Plan, shard: Path, needed: list[str], tmp_path: Path
) -> None:
    folder = broken_copy(shard, tmp_path, without(needed[:1]))
    try:
        make_model(part, plan).load(folder)
    except CheckpointError as error:
        require(needed[0] in str(error), "load does not name the missing tensor", got=error)
        return
    except Exception as error:
        fail("load of a broken checkpoint is no CheckpointError", got=repr(error))
    fail("load took a checkpoint in which a tensor is missing", missing=needed[0])
