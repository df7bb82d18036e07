"""The same weights in other layouts: unquantised, in several shards, with the optional prefix; the text is the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from e2e_checkpoints import replace_json
from safetensors.torch import load_file, save_file

from deepinfer_v41.weights.formats import dequantize_block_fp8, dequantize_mxfp4

GREEDY = ("--json", "generate", "--temperature", "0", "--max-tokens", "12", "--numeric-mode", "exact")


def unquantised(tensors: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Every weight as BF16, without its scale. FP8 and FP4 times a power of two are exact in BF16."""
    for name, tensor in tensors.items():
        if name.endswith(".scale"):
            continue
        scale = tensors.get(name.removesuffix(".weight") + ".scale")
        if scale is None:
            yield name, tensor
        elif tensor.dtype == torch.int8:
            yield name, dequantize_mxfp4(tensor, scale).bfloat16()
        elif scale.shape[0] == tensor.shape[0]:  # rows of an Engram table: a scale per 32 columns
            wide = torch.exp2(scale.view(torch.uint8).float() - 127).repeat_interleave(32, dim=1)
            yield name, (tensor.float() * wide).bfloat16()
        else:
            yield name, dequantize_block_fp8(tensor, scale).bfloat16()


def save_shards(path: Path, tensors: dict[str, torch.Tensor], count: int) -> None:
    """Spread ``tensors`` over ``count`` shards and index them."""
    weight_map = {}
    (path / "model.safetensors").unlink()
    for shard in range(count):
        name = f"model-{shard + 1:05d}-of-{count:05d}.safetensors"
        part = {key: tensors[key].contiguous() for key in list(tensors)[shard::count]}
        save_file(part, path / name)
        weight_map.update(dict.fromkeys(part, name))
    (path / "model.safetensors.index.json").unlink()
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def tokens(result) -> list[int]:
    if result.status:
        raise RuntimeError(result.err)
    return json.loads(result.out)["token_ids"]


@pytest.fixture
def expected(run, shipped: Path) -> list[int]:
    return tokens(run(*GREEDY, "--model", shipped, "def main("))


def test_generate_unquantised_weights_in_three_shards_gives_the_same_text(run, model: Path, expected) -> None:
    save_shards(model, dict(unquantised(load_file(model / "model.safetensors"))), 3)
    replace_json(model / "config.json", lambda c: c.pop("quantization_config"))
    assert tokens(run(*GREEDY, "--model", model, "def main(")) == expected


def test_generate_prefixed_names_give_the_same_text(run, model: Path, expected) -> None:
    tensors = load_file(model / "model.safetensors")
    prefixed = {name if name.startswith("head") else f"model.{name}": tensor for name, tensor in tensors.items()}
    save_shards(model, prefixed, 2)
    assert tokens(run(*GREEDY, "--model", model, "def main(")) == expected


def test_generate_one_shard_without_an_index_gives_the_same_text(run, model: Path, expected) -> None:
    (model / "model.safetensors.index.json").unlink()
    assert tokens(run(*GREEDY, "--model", model, "def main(")) == expected


def test_generate_without_draft_weights_runs(run, model: Path, expected) -> None:
    tensors = load_file(model / "model.safetensors")
    save_shards(model, {name: t for name, t in tensors.items() if not name.startswith("mtp.")}, 1)
    assert tokens(run(*GREEDY, "--model", model, "def main(")) == expected
