"""Reading checkpoints: what the loader takes, and what each kind of damage is reported as (spec/model.md 3)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_checkpoint import random_tensors, tiny_config, write_tiny_checkpoint

from deepinfer_core.errors import CheckpointError, InvalidParameter, ModelConfigError, ModelNotFound
from deepinfer_v41.config import V41Config
from deepinfer_v41.weights.checks import check_names, find_absent_stages
from deepinfer_v41.weights.index import open_shards
from deepinfer_v41.weights.loader import load_tensors
from deepinfer_v41.weights.problems import Problems
from deepinfer_v41.weights.table import tensor_table

Tensors = dict[str, torch.Tensor]
Write = Callable[..., Path]

# Few experts and layers: every kind of tensor is there, and a file is written in milliseconds.
SMALL: dict[str, Any] = {
    "num_hidden_layers": 6,
    "compress_ratios": [0, 0, 2, 2, 1, 1, 0, 0],
    "kv_source_layer_ids": [2, 4],
    "index_source_layer_ids": [2, 4, 5],
    "candidate_source_layer_id": 4,
    "engram_layer_ids": [1, 3],
    "n_routed_experts": 2,
    "dspark_n_routed_experts": 2,
    "num_nextn_predict_layers": 2,
    "dspark_target_layer_ids": [4, 5],
}
CONFIG = V41Config.from_dict(tiny_config(SMALL, vision=True))
FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def source() -> Tensors:
    return random_tensors(CONFIG, seed=3)


@pytest.fixture
def tensors(source: Tensors) -> Tensors:
    """A copy of the mapping that a test may change; the tensors themselves are shared."""
    return dict(source)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_shards(tensors: Tensors | None = None, *, shards: dict[str, Tensors] | None = None, **index: str) -> Path:
        """One file, or shards with an index; ``index`` has changes of the index."""
        if tensors is not None:
            save_file(tensors, tmp_path / FILE)
        if shards is not None:
            for name, part in shards.items():
                save_file(part, tmp_path / name)
            placement = {tensor: name for name, part in shards.items() for tensor in part}
            (tmp_path / INDEX).write_text(json.dumps({"weight_map": placement}), encoding="utf-8")
        return tmp_path

    return write_shards


def edit_index(directory: Path, changes: dict[str, str | None]) -> None:
    document = json.loads((directory / INDEX).read_text("utf-8"))
    for name, shard in changes.items():
        if shard is None:
            del document["weight_map"][name]
        else:
            document["weight_map"][name] = shard
    (directory / INDEX).write_text(json.dumps(document), encoding="utf-8")


def split(tensors: Tensors) -> dict[str, Tensors]:
    names = list(tensors)
    middle = len(names) // 2
    return {
        "a.safetensors": {name: tensors[name] for name in names[:middle]},
        "b.safetensors": {name: tensors[name] for name in names[middle:]},
    }


def error_of(directory: Path, config: V41Config = CONFIG, **options: Any) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        load_tensors(directory, config, **options)
    return caught.value


def groups_of(error: CheckpointError) -> dict[str, list[str]]:
    return error.details["problems"]  # type: ignore[return-value]


# --- what loads


def same_bytes(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype == right.dtype and torch.equal(left.view(torch.uint8), right.view(torch.uint8))


def test_single_file_gives_every_tensor_as_stored(write: Write, tensors: Tensors) -> None:
    loaded = load_tensors(write(tensors), CONFIG)
    assert set(loaded) == set(tensors)
    assert [name for name, tensor in tensors.items() if not same_bytes(loaded[name], tensor)] == []
    assert loaded["layers.0.attn.wq_a.scale"].dtype == torch.float8_e8m0fnu
    assert loaded["layers.0.ffn.experts.0.w1.weight"].dtype == torch.int8
    assert loaded["layers.0.hc_attn_fn"].dtype == torch.float32


def test_shards_with_an_index_give_the_same(write: Write, tensors: Tensors) -> None:
    loaded = load_tensors(write(shards=split(tensors)), CONFIG)
    assert len(loaded) == len(tensors)
    assert all(same_bytes(loaded[name], tensor) for name, tensor in tensors.items())


def test_model_prefix_is_optional(write: Write, tensors: Tensors) -> None:
    renamed = {name if name.startswith("head") else f"model.{name}": tensor for name, tensor in tensors.items()}
    loaded = load_tensors(write(renamed), CONFIG)
    assert set(loaded) == set(tensors)


def test_stray_weight_file_is_ignored(write: Write, tensors: Tensors) -> None:
    directory = write(shards=split(tensors))
    save_file({"norm.weight": torch.zeros(3)}, directory / "stray.safetensors")
    (directory / "consolidated.safetensors").write_bytes(b"no safetensors at all")
    assert len(load_tensors(directory, CONFIG)) == len(tensors)


def test_index_leads_over_a_single_file(write: Write, tensors: Tensors) -> None:
    directory = write({"norm.weight": torch.zeros(3)}, shards=split(tensors))
    assert len(load_tensors(directory, CONFIG)) == len(tensors)


def test_tiny_checkpoint_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    config = write_tiny_checkpoint(tmp_path / "a", overrides=SMALL)
    write_tiny_checkpoint(tmp_path / "b", overrides=SMALL)
    assert V41Config.from_directory(tmp_path / "a") == V41Config.from_dict(config)
    first, second = load_file(tmp_path / "a" / FILE), load_file(tmp_path / "b" / FILE)
    assert all(same_bytes(first[name], second[name]) for name in first)
    assert len(load_tensors(tmp_path / "a", V41Config.from_dict(config))) == len(first)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_unquantised_weights_load_without_scales(write: Write, dtype: torch.dtype) -> None:
    config = attrs.evolve(CONFIG, quantized=False)
    tensors = random_tensors(config, seed=1)
    cast = {name: t.to(dtype) if t.dtype == torch.bfloat16 else t for name, t in tensors.items()}
    loaded = load_tensors(write(cast), config)
    assert set(loaded) == set(tensors)
    assert loaded["layers.0.ffn.experts.0.w2.weight"].shape == (128, 64)
    assert loaded["layers.0.attn.wq_a.weight"].dtype == dtype


def test_power_of_two_scales_in_f32_become_e8m0(write: Write, tensors: Tensors) -> None:
    name = "layers.0.attn.wq_b.scale"
    stored = tensors[name]
    tensors[name] = stored.float()
    assert same_bytes(load_tensors(write(tensors), CONFIG)[name], stored)


# --- names


def test_five_problems_are_listed_together(write: Write, tensors: Tensors) -> None:
    del tensors["norm.weight"], tensors["layers.3.attn.attn_sink"]
    tensors |= {"x.weight": torch.zeros(2), "layers.0.y": torch.zeros(3, 4), "z": torch.zeros(1, dtype=torch.int8)}
    directory = write(tensors)
    assert str(error_of(directory)) == (
        f"E_CHECKPOINT: checkpoint {directory}: 5 problems\n"
        "    missing tensors (2):\n"
        "      norm.weight: expected BF16 [128] in model.safetensors\n"
        "      layers.3.attn.attn_sink: expected F32 [4] in model.safetensors\n"
        "    unexpected tensors (3):\n"
        "      layers.0.y (model.safetensors): F32 [3, 4]\n"
        "      x.weight (model.safetensors): F32 [2]\n"
        "      z (model.safetensors): I8 [1]\n"
        "  reason: every tensor of the model must be there once, with its dtype, shape and scale\n"
        "  remedy: check that config.json and the weights are of one checkpoint"
    )


def test_renaming_any_tensor_names_the_missing_and_the_unexpected(write: Write, tensors: Tensors) -> None:
    directory = write(tensors)
    shards, table = open_shards(directory, Problems(directory)), tensor_table(CONFIG)
    silent = []
    for name in table:
        renamed = dict(shards.tensors)
        renamed[name + "_"] = renamed.pop(name)
        changed, problems = attrs.evolve(shards, tensors=renamed), Problems(directory)
        check_names(table, changed, find_absent_stages(table, changed), problems)
        listed = [entry.split(" ")[0].rstrip(":") for entries in problems.found.values() for entry in entries]
        if sorted(listed) != [name, name + "_"]:
            silent.append((name, listed))
    assert silent == []


@pytest.mark.parametrize(
    "name", ["norm.weight", "layers.2.attn.attn_sink", "layers.1.hc_ffn_scale", "head.weight", "mtp.1.norm.weight"]
)
def test_renaming_in_the_file_is_a_load_error(write: Write, tensors: Tensors, name: str) -> None:
    tensors[f"{name}.old"] = tensors.pop(name)
    found = groups_of(error_of(write(tensors), draft="off"))
    assert list(found) == ["missing tensors", "unexpected tensors"]
    assert found["missing tensors"][0].startswith(f"{name}: expected ")
    assert found["unexpected tensors"][0].startswith(f"{name}.old (model.safetensors)")


@pytest.mark.parametrize(
    "name",
    ["layers.0.hc_attn_norm.weight", "hc_head_fn", "layers.2.attn.compressor.ape", "layers.0.ffn.gate.tid2eid"],
)
def test_tensor_of_another_architecture_is_named_with_its_reason(write: Write, tensors: Tensors, name: str) -> None:
    tensors[name] = torch.zeros(4)
    entry = groups_of(error_of(write(tensors)))["tensors of another architecture"][0]
    assert entry.startswith(f"{name} (model.safetensors): V4.1")


def test_same_tensor_with_and_without_prefix_is_refused(write: Write, tensors: Tensors) -> None:
    tensors["model.norm.weight"] = tensors["norm.weight"].clone()
    entry = groups_of(error_of(write(tensors)))["unexpected tensors"][0]
    assert "model.norm.weight" in entry
    assert entry.endswith("are the same tensor")


def test_a_long_list_is_cut_in_the_text_but_not_in_the_details(write: Write, tensors: Tensors) -> None:
    tensors |= {f"extra.{i}": torch.zeros(1) for i in range(50)}
    error = error_of(write(tensors))
    assert "      ... and 30 more\n" in str(error)
    assert len(groups_of(error)["unexpected tensors"]) == 50


# --- index and shards


def test_tensor_not_in_the_shard_of_the_index_names_both(write: Write, tensors: Tensors) -> None:
    directory = write(shards=split(tensors))
    edit_index(directory, {"norm.weight": "b.safetensors"})
    error = error_of(directory)
    assert groups_of(error)["tensors that are not in the shard the index names"] == [
        "norm.weight: the index names b.safetensors, which lacks it; it is in a.safetensors"
    ]
    edit_index(directory, {"norm.weight": None, "nowhere": "a.safetensors"})
    assert groups_of(error_of(directory)) == {
        "tensors that are not in the shard the index names": [
            "nowhere: the index names a.safetensors, which lacks it; it is in no shard"
        ],
        "missing tensors": ["norm.weight: expected BF16 [128] in one of 2 shards"],
        "unexpected tensors": ["norm.weight (a.safetensors), which the index does not name"],
    }


def test_missing_shard_is_named_once_with_its_tensors(write: Write, tensors: Tensors) -> None:
    directory = write(shards=split(tensors))
    (directory / "b.safetensors").unlink()
    found = groups_of(error_of(directory))
    first = list(split(tensors)["b.safetensors"])[:3]
    more = len(split(tensors)["b.safetensors"]) - 3
    assert found == {
        "missing shards": [f"b.safetensors: the index names it for {', '.join(first)} and {more} more"],
    }


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (-1000, "truncated: {size} bytes, its header needs {full}"),
        (100, "truncated: {size} bytes, too short for its header"),
        (3, "truncated: {size} bytes, too short for its header"),
        (0, "truncated: {size} bytes, too short for its header"),
    ],
)
def test_truncated_shard_is_named_with_its_sizes(write: Write, tensors: Tensors, keep: int, message: str) -> None:
    directory = write(tensors)
    data = (directory / FILE).read_bytes()
    cut = data[:keep]
    (directory / FILE).write_bytes(cut)
    expected = f"{FILE}: " + message.format(size=len(cut), full=len(data))
    assert groups_of(error_of(directory)) == {"unreadable shards": [expected]}


def test_shard_that_is_no_safetensors_file_is_named(write: Write, tensors: Tensors) -> None:
    directory = write(tensors)
    (directory / FILE).write_bytes((20).to_bytes(8, "little") + b"x" * 100)
    expected = [f"{FILE}: its header is not that of a safetensors file"]
    assert groups_of(error_of(directory)) == {"unreadable shards": expected}


def test_one_truncated_shard_of_two_does_not_list_its_tensors(write: Write, tensors: Tensors) -> None:
    directory = write(shards=split(tensors))
    data = (directory / "b.safetensors").read_bytes()
    (directory / "b.safetensors").write_bytes(data[:-1])
    expected = f"b.safetensors: truncated: {len(data) - 1} bytes, its header needs {len(data)}"
    assert groups_of(error_of(directory)) == {"unreadable shards": [expected]}


@pytest.mark.parametrize("shard", ["../a.safetensors", "/etc/passwd", "sub/a.safetensors", "..\\a", "", 3])
def test_index_that_leaves_its_directory_is_refused(write: Write, tensors: Tensors, shard: Any) -> None:
    directory = write(shards=split(tensors))
    edit_index(directory, {"norm.weight": shard})
    error = error_of(directory)
    assert f"names shard {shard!r} for norm.weight" in str(error)
    assert "must be a plain file name" in str(error)


@pytest.mark.parametrize(
    ("text", "message"), [("{", "cannot be read"), ("[]", "has no weight_map"), ("{}", "has no weight_map")]
)
def test_malformed_index_is_refused(write: Write, tensors: Tensors, text: str, message: str) -> None:
    directory = write(tensors)
    (directory / INDEX).write_text(text, encoding="utf-8")
    assert message in str(error_of(directory))


def test_directory_without_weights_says_what_is_there(tmp_path: Path) -> None:
    assert "no weight file is there at all" in str(error_of(tmp_path))
    (tmp_path / "pytorch_model.bin").touch()
    assert str(error_of(tmp_path)) == (
        f"E_CHECKPOINT: {tmp_path} has neither model.safetensors.index.json nor model.safetensors\n"
        "  reason: found only pytorch_model.bin, which no index names\n"
        "  remedy: download the whole checkpoint in the safetensors format, with its index"
    )


def test_absent_directory_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no model directory"):
        load_tensors(tmp_path / "nope", CONFIG)


def test_config_file_is_read_or_refused_clearly(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"config\.json is missing"):
        V41Config.from_directory(tmp_path)
    for text, message in (("{", "cannot be read"), ("[" * 100_000, "cannot be read"), ("[1]", "holds no object")):
        (tmp_path / "config.json").write_text(text, encoding="utf-8")
        with pytest.raises(ModelConfigError, match=message):
            V41Config.from_directory(tmp_path)


# --- storage and scales


def test_wrong_dtype_and_shape_are_grouped(write: Write, tensors: Tensors) -> None:
    tensors["layers.0.hc_attn_fn"] = tensors["layers.0.hc_attn_fn"].bfloat16()
    tensors["layers.1.attn.wq_a.weight"] = tensors["layers.1.attn.wq_a.weight"].float()
    tensors["norm.weight"] = torch.ones(64, dtype=torch.bfloat16)
    tensors["layers.2.attn.wo_b.weight"] = tensors["layers.2.attn.wo_b.weight"].T.contiguous()
    found = groups_of(error_of(write(tensors)))
    assert found == {
        "tensors of the wrong dtype": [
            "layers.0.hc_attn_fn (model.safetensors): BF16, expected F32",
            "layers.1.attn.wq_a.weight (model.safetensors): F32, expected F8_E4M3",
        ],
        "tensors of the wrong shape": [
            "norm.weight (model.safetensors): [64], expected [128]",
            "layers.2.attn.wo_b.weight (model.safetensors): [64, 128], expected [128, 64]",
        ],
    }


SCALE = "layers.0.attn.wq_b.scale"
NEEDS = "F8_E8M0 [8, 2], one scale per 32x32 block of [256, 64] values"


def test_quantised_tensor_without_its_scale_is_an_error(write: Write, tensors: Tensors) -> None:
    del tensors[SCALE], tensors["layers.0.ffn.experts.1.w2.scale"]
    expert = "layers.0.ffn.experts.1.w2"
    expert_needs = "F8_E8M0 [128, 2], one scale per row and 32 columns of [128, 64] values"
    assert groups_of(error_of(write(tensors))) == {
        "missing or wrong scales": [
            f"{SCALE}: missing; layers.0.attn.wq_b.weight (model.safetensors) needs {NEEDS}",
            f"{expert}.scale: missing; {expert}.weight (model.safetensors) needs {expert_needs}",
        ]
    }


def test_renamed_scale_is_missing_and_unexpected(write: Write, tensors: Tensors) -> None:
    tensors[f"{SCALE}_inv"] = tensors.pop(SCALE)
    found = groups_of(error_of(write(tensors)))
    assert found["missing or wrong scales"][0].startswith(f"{SCALE}: missing; ")
    assert found["unexpected tensors"] == [f"{SCALE}_inv (model.safetensors): F8_E8M0 [8, 2]"]


def test_reshaped_or_transposed_scale_is_an_error(write: Write, tensors: Tensors) -> None:
    tensors[SCALE] = tensors[SCALE].view(torch.uint8).T.contiguous().view(torch.float8_e8m0fnu)
    tensors["layers.1.attn.wq_b.scale"] = tensors["layers.1.attn.wq_b.scale"].reshape(4, 4)
    expected = "expected [8, 2], one scale per 32x32 block of [256, 64] values"
    assert groups_of(error_of(write(tensors))) == {
        "missing or wrong scales": [
            f"{SCALE} (model.safetensors): [2, 8], {expected}; it is the transposed grid",
            f"layers.1.attn.wq_b.scale (model.safetensors): [4, 4], {expected}",
        ]
    }


@pytest.mark.parametrize(
    ("value", "shown"), [(0.75, "0.75"), (3.0, "3"), (0.0, "0"), (-1.0, "-1"), (math.inf, "inf"), (math.nan, "nan")]
)
def test_f32_scale_that_is_no_power_of_two_is_refused(write: Write, tensors: Tensors, value: float, shown: str) -> None:
    scale = tensors[SCALE].float()
    scale[3, 1] = scale[4, 0] = value
    tensors[SCALE] = scale
    assert groups_of(error_of(write(tensors))) == {
        "missing or wrong scales": [
            f"{SCALE} (model.safetensors): at [3, 1] is {shown}, which is no power of two (and 1 more)"
        ]
    }


def test_scale_of_another_dtype_is_refused(write: Write, tensors: Tensors) -> None:
    tensors[SCALE] = tensors[SCALE].float().bfloat16()
    assert groups_of(error_of(write(tensors))) == {
        "missing or wrong scales": [f"{SCALE} (model.safetensors): BF16, expected F8_E8M0 or F32"]
    }


def test_scale_byte_255_is_refused(write: Write, tensors: Tensors) -> None:
    exponents = tensors[SCALE].view(torch.uint8).clone()
    exponents[7, 1] = 255
    tensors[SCALE] = exponents.view(torch.float8_e8m0fnu)
    assert groups_of(error_of(write(tensors))) == {
        "missing or wrong scales": [f"{SCALE} (model.safetensors): at [7, 1] is byte 255, which is no number"]
    }


def test_scale_bytes_0_to_254_are_copied_raw(write: Write, tensors: Tensors) -> None:
    name = "layers.1.engram.embed.scale"
    values = (torch.arange(tensors[name].numel()) % 255).to(torch.uint8).view(tensors[name].shape)
    tensors[name] = values.view(torch.float8_e8m0fnu)
    assert torch.equal(load_tensors(write(tensors), CONFIG)[name].view(torch.uint8), values)


def test_quantised_weights_with_an_unquantised_config_are_refused(write: Write, tensors: Tensors) -> None:
    found = groups_of(error_of(write(tensors), attrs.evolve(CONFIG, quantized=False)))
    assert (
        "layers.0.attn.wq_a.weight (model.safetensors): F8_E4M3, expected BF16 or F16 or F32"
        in (found["tensors of the wrong dtype"])
    )
    assert any(entry.startswith("layers.0.attn.wq_a.scale ") for entry in found["unexpected tensors"])


# --- draft stages


def without_stage(tensors: Tensors, *stages: int) -> Tensors:
    return {n: t for n, t in tensors.items() if not any(n.startswith(f"mtp.{stage}.") for stage in stages)}


def test_whole_checkpoint_has_its_draft_stages(write: Write, tensors: Tensors) -> None:
    loaded = load_tensors(write(tensors), CONFIG, draft="on")
    assert (loaded.draft_stages, loaded.has_draft, loaded.draft_note) == (2, True, "")
    assert "mtp.1.markov_head.head.weight" in loaded


def test_checkpoint_without_draft_weights_runs_without_drafting(write: Write, tensors: Tensors) -> None:
    directory = write(without_stage(tensors, 0, 1))
    for mode in ("off", "auto"):
        loaded = load_tensors(directory, CONFIG, draft=mode)  # type: ignore[arg-type]
        assert (loaded.draft_stages, loaded.has_draft) == (0, False)
        assert loaded.draft_note == "drafting is off: the checkpoint has no weights of draft stages mtp.0, mtp.1"
        assert not any(name.startswith("mtp.") for name in loaded)
        assert len(list(loaded.items())) == len(loaded)


def test_drafting_on_names_the_missing_stage(write: Write, tensors: Tensors) -> None:
    directory = write(without_stage(tensors, 1))
    count = sum(name.startswith("mtp.1.") for name in tensors)
    error = error_of(directory, draft="on")
    assert groups_of(error) == {"missing draft stages": [f"mtp.1: none of its {count} tensors is there"]}
    assert error.remedy == "switch drafting off, or use a checkpoint with draft weights"
    assert load_tensors(directory, CONFIG).draft_note.endswith("no weights of draft stage mtp.1")


def test_stage_that_is_there_in_part_is_an_error_in_every_mode(write: Write, tensors: Tensors) -> None:
    del tensors["mtp.1.norm.weight"]
    directory = write(tensors)
    for mode in ("auto", "on", "off"):
        expected = {"missing tensors": ["mtp.1.norm.weight: expected BF16 [128] in model.safetensors"]}
        assert groups_of(error_of(directory, draft=mode)) == expected


def test_model_without_draft_stages_refuses_drafting(write: Write, tensors: Tensors) -> None:
    changes = {"num_nextn_predict_layers": 0, "compress_ratios": [0, 0, 2, 2, 1, 1]}
    config = V41Config.from_dict(tiny_config(SMALL | changes, vision=True))
    directory = write(without_stage(tensors, 0, 1))
    assert "num_nextn_predict_layers is 0" in str(error_of(directory, config, draft="on"))
    assert load_tensors(directory, config).draft_note == "drafting is off: the model has no draft stages"


def test_unknown_draft_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="draft is 'maybe'"):
        load_tensors(tmp_path, CONFIG, draft="maybe")  # type: ignore[arg-type]


def test_scales_are_checked_in_pieces_too(write: Write, tensors: Tensors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepinfer_v41.weights.checks._PIECE", 5)
    exponents = tensors[SCALE].view(torch.uint8).clone()
    exponents[3, 0] = exponents[7, 1] = 255
    tensors[SCALE] = exponents.view(torch.float8_e8m0fnu)
    assert groups_of(error_of(write(tensors))) == {
        "missing or wrong scales": [
            f"{SCALE} (model.safetensors): at [3, 0] is byte 255, which is no number (and 1 more)"
        ]
    }
