"""A model directory that cannot be used: one typed error each, exit status 4, nothing on standard output."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from e2e_checkpoints import replace_json, rewrite_tensors
from safetensors import safe_open

Damage = Callable[[Path], None]


def no_directory(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


def no_config(path: Path) -> None:
    (path / "config.json").unlink()


def config_not_json(path: Path) -> None:
    (path / "config.json").unlink()
    (path / "config.json").write_text("{")


def unknown_architecture(path: Path) -> None:
    replace_json(path / "config.json", lambda c: c.update(architectures=["Unheard"]))


def field_missing(path: Path) -> None:
    replace_json(path / "config.json", lambda c: c["text_config"].pop("sliding_window"))


def field_of_wrong_type(path: Path) -> None:
    replace_json(path / "config.json", lambda c: c["text_config"].update(hidden_size="256"))


def field_out_of_range(path: Path) -> None:
    replace_json(path / "config.json", lambda c: c["text_config"].update(num_experts_per_tok=9))


def shard_missing(path: Path) -> None:
    (path / "model.safetensors").unlink()


def shard_truncated(path: Path) -> None:
    data = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").unlink()
    (path / "model.safetensors").write_bytes(data[:-1000])


def tensor_surplus(path: Path) -> None:
    rewrite_tensors(path, lambda t: t.update({"layers.0.attn.spare.weight": np.zeros(4, np.float32)}))


def tensor_missing(path: Path) -> None:
    rewrite_tensors(path, lambda t: t.pop("norm.weight"))


def tensor_of_wrong_dtype(path: Path) -> None:
    rewrite_tensors(path, lambda t: t.update({"layers.0.attn.attn_sink": np.zeros(8, np.int64)}))


def tensor_of_wrong_shape(path: Path) -> None:
    rewrite_tensors(path, lambda t: t.update({"layers.0.attn.attn_sink": np.zeros(7, np.float32)}))


def tokenizer_missing(path: Path) -> None:
    (path / "tokenizer.json").unlink()


DAMAGES: list[tuple[Damage, str, str]] = [
    (no_directory, "E_MODEL_MISSING", "model"),
    (no_config, "E_MODEL_MISSING", "config.json"),
    (config_not_json, "E_MODEL_CONFIG", "config.json"),
    (unknown_architecture, "E_MODEL", "Unheard"),
    (field_missing, "E_MODEL_CONFIG", "sliding_window"),
    (field_of_wrong_type, "E_MODEL_CONFIG", "hidden_size"),
    (field_out_of_range, "E_MODEL_CONFIG", "num_experts_per_tok"),
    (shard_missing, "E_CHECKPOINT", "model.safetensors"),
    (shard_truncated, "E_CHECKPOINT", "model.safetensors"),
    (tensor_surplus, "E_CHECKPOINT", "layers.0.attn.spare.weight"),
    (tensor_missing, "E_CHECKPOINT", "norm.weight"),
    (tensor_of_wrong_dtype, "E_CHECKPOINT", "layers.0.attn.attn_sink"),
    (tensor_of_wrong_shape, "E_CHECKPOINT", "layers.0.attn.attn_sink"),
    (tokenizer_missing, "E_TOKENIZER", "tokenizer.json"),
]


@pytest.mark.parametrize(("damage", "code", "names"), DAMAGES, ids=[d[0].__name__ for d in DAMAGES])
def test_generate_damaged_model_names_the_fault(run, model: Path, damage: Damage, code: str, names: str) -> None:
    damage(model)
    result = run("generate", "--model", model, "import os")
    assert result.status == 4
    assert result.out == ""
    assert f"deepinfer: {code}: " in result.err
    assert names in result.err
    assert "  remedy: " in result.err
    assert "Traceback" not in result.err


def test_generate_damaged_model_with_json_writes_one_error_object(run, model: Path) -> None:
    tensor_missing(model)
    result = run("--json", "generate", "--model", model, "import os")
    error = json.loads(result.err.splitlines()[-1])["error"]
    assert (result.status, result.out, error["code"]) == (4, "", "E_CHECKPOINT")


def test_rewrite_tensors_unchanged_model_generates(run, model: Path) -> None:
    """The damages above damage what they say, and nothing else."""
    rewrite_tensors(model, lambda tensors: None)
    with safe_open(model / "model.safetensors", "np") as file:
        assert "norm.weight" in file.keys()  # noqa: SIM118  (not a mapping)
    result = run("generate", "--model", model, "--max-tokens", 2, "--seed", 1, "import os")
    assert (result.status, bool(result.out)) == (0, True)
