"""``deepinfer checkpoint``: the shipped checkpoint as a whole, and damaged ones."""

from __future__ import annotations

import json
import os
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from v41_tiny import SMALL, edited, tiny_path

from deepinfer_core import cli
from deepinfer_core.plugins import discovery
from deepinfer_v41.plugin import deepinfer_cli_commands

SHIPPED = Path(str(files("deepinfer_v41").joinpath("checkpoints/v41-tiny")))
TOML = Path(str(files("deepinfer_v41").joinpath("deepinfer.toml")))


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in [name for name in os.environ if name.startswith("DEEPINFER_")]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """The distribution as this source tree has it, whatever is installed."""
    entries = [entry for entry in discovery.installed_entry_points() if entry.dist.name == "deepinfer-v41"]
    monkeypatch.setattr(discovery, "installed_entry_points", lambda: tuple(entries))


def run(capsys, status: int, *arguments: str) -> str:
    assert cli.main(["checkpoint", *arguments]) == status
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def small() -> Path:
    return tiny_path(**SMALL)


def test_shipped_checkpoint_is_told_part_by_part(capsys):
    assert run(capsys, 0, str(SHIPPED)) == (
        f"DeepseekV41ForCausalLM in {SHIPPED}\n"
        "  layers      8 (2 swa, 2 full, 3 reuse, 1 reindex), width 256\n"
        "  vocabulary  1,536 ids; 2,048 positions\n"
        "  experts     8 a layer, 2 for a token, 1 shared\n"
        "  draft head  2 stages, 4 drafts\n"
        "  tokenizer   1,536 tokens\n"
        "  weights     772 tensors in 1 file: 8,375,420 values, 8.8 MiB\n"
        "\n"
        "PART                    TENSORS     VALUES       SIZE  FORMATS\n"
        "embedding and head            3    786,688    1.5 MiB  BF16 1.5 MiB\n"
        "attention of 2 swa           26    360,848  353.2 KiB  FP8 (32x32) 352.0 KiB, BF16 768 B, scales 352 B, "
        "F32 64 B\n"
        "attention of 2 full          41    449,104  493.6 KiB  FP8 (32x32) 384.0 KiB, BF16 109.1 KiB, scales 384 B, "
        "F32 64 B\n"
        "attention of 1 reindex       16    197,832  194.6 KiB  FP8 (32x32) 192.0 KiB, BF16 2.4 KiB, scales 192 B, "
        "F32 32 B\n"
        "attention of 3 reuse         39    541,272  529.7 KiB  FP8 (32x32) 528.0 KiB, BF16 1.1 KiB, scales 528 B, "
        "F32 96 B\n"
        "routed experts              384  3,145,728    1.6 MiB  MXFP4 1.5 MiB, scales 96.0 KiB\n"
        "shared experts               48    393,216  384.4 KiB  FP8 (32x32) 384.0 KiB, scales 384 B\n"
        "router                       24     16,512   32.5 KiB  BF16 32.0 KiB, F32 512 B\n"
        "norms and streams            64    397,744    1.5 MiB  F32 1.5 MiB, BF16 8.0 KiB\n"
        "engram                       12    738,560  733.1 KiB  FP8 (32x32) 480.0 KiB, FP8 (1x32) 237.2 KiB, "
        "BF16 8.0 KiB, scales 7.9 KiB\n"
        "draft head                  115  1,347,916    1.6 MiB  FP8 (32x32) 640.0 KiB, BF16 392.4 KiB, F32 384.5 KiB, "
        "MXFP4 192.0 KiB, scales 12.6 KiB\n"
        "\n"
        "0 problems.\n"
    )


def test_json_has_the_same_and_adds_up_to_the_file(capsys):
    data = json.loads(run(capsys, 0, str(SHIPPED), "--json"))
    header = int.from_bytes((SHIPPED / "model.safetensors").read_bytes()[:8], "little")
    assert data["bytes"] == (SHIPPED / "model.safetensors").stat().st_size - 8 - header
    assert data["bytes"] == sum(part["nbytes"] for part in data["parts"])
    assert all(part["nbytes"] == sum(part["formats"].values()) for part in data["parts"])
    assert (data["problems"], data["tokenizer"], data["layers"]["reuse"]) == ({}, 1536, 3)


def test_damaged_checkpoint_is_counted_and_everything_wrong_is_listed(capsys):
    def damage(tensors):
        del tensors["layers.1.attn.wq_a.scale"]
        tensors["layers.9.stray"] = torch.zeros(3)

    path = edited(small(), damage)
    out = run(capsys, 4, str(path))
    assert "unknown " in out
    assert out.endswith(
        "unexpected tensors (1):\n"
        "  layers.9.stray (model.safetensors): F32 [3]\n"
        "missing or wrong scales (1):\n"
        "  layers.1.attn.wq_a.scale: missing; layers.1.attn.wq_a.weight (model.safetensors) needs F8_E8M0 [2, 4], one "
        "scale per 32x32 block of [64, 128] values\n"
        "tokenizer (1):\n"
        f"  no tokenizer.json in {path}\n"
        "3 problems.\n"
    )


def test_values_of_scales_are_read_unless_headers_are_enough(capsys):
    def damage(tensors):
        tensors["layers.1.attn.wq_a.scale"].view(torch.uint8)[0, 0] = 255

    path = str(edited(small(), damage))
    problems = json.loads(run(capsys, 4, path, "--json"))["problems"]
    assert problems["missing or wrong scales"] == [
        "layers.1.attn.wq_a.scale (model.safetensors): at [0, 0] is byte 255, which is no number"
    ]
    assert "missing or wrong scales" not in json.loads(run(capsys, 4, path, "--json", "--headers-only"))["problems"]


def test_draft_stages_without_weights_are_told_and_are_no_problem(capsys):
    def damage(tensors):
        for name in [name for name in tensors if name.startswith("mtp.")]:
            del tensors[name]

    data = json.loads(run(capsys, 4, str(edited(small(), damage)), "--json"))
    assert data["draft"]["absent"] == [0, 1]
    assert list(data["problems"]) == ["tokenizer"]
    assert not [part for part in data["parts"] if part["name"] == "draft head"]


def test_checkpoint_of_another_model_is_refused(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    assert cli.main(["checkpoint", str(tmp_path)]) == 4
    assert capsys.readouterr().err == (
        f"deepinfer: E_MODEL: {tmp_path} holds a LlamaForCausalLM\n"
        "  reason: this command reads checkpoints of DeepseekV41ForCausalLM\n"
        "  remedy: give a V4.1 checkpoint; deepinfer doctor --model DIR looks at any model\n"
    )


def test_folder_without_weights_is_an_error(tmp_path, capsys):
    (tmp_path / "config.json").write_text((small() / "config.json").read_text())
    assert cli.main(["checkpoint", str(tmp_path)]) == 4
    assert capsys.readouterr().err.startswith(
        f"deepinfer: E_CHECKPOINT: {tmp_path} has neither model.safetensors.index"
    )


def test_manifest_and_hook_declare_the_same_commands():
    specs = deepinfer_cli_commands()
    assert [spec.name for spec in specs] == ["checkpoint", "released"]
    for spec in specs:
        assert f'{{ name = "{spec.name}", summary = "{spec.help}" }}' in TOML.read_text("utf-8")


def test_folder_that_is_not_there_is_told_without_options_of_other_commands(tmp_path, capsys):
    assert cli.main(["checkpoint", str(tmp_path / "none")]) == 4
    assert capsys.readouterr().err.endswith("  remedy: give the path of a checkpoint folder\n")
