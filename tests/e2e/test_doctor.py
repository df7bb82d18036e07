"""``deepinfer doctor`` over the installed plugins and the shipped checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from e2e_checkpoints import replace_json

from deepinfer_core.config import EngineConfig
from deepinfer_core.doctor.findings import Finding
from deepinfer_core.doctor.model_plan import examine


def doctor(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit status and the JSON report, of a process of its own."""
    options = ["-O"] * sys.flags.optimize
    command = [sys.executable, *options, "-m", "deepinfer_core.cli", "doctor", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.stderr:
        raise AssertionError(done.stderr)
    return done.returncode, json.loads(done.stdout)


def examined(**settings: object) -> dict[str, Finding]:
    return {finding.check: finding for finding in examine(EngineConfig.resolve(settings, environ={}))}


def test_doctor_on_a_healthy_machine_finds_all_well_and_plans_the_shipped_checkpoint(shipped: Path) -> None:
    status, data = doctor("--model", str(shipped), "--draft-tokens", "3")
    problems = [item for item in data["checks"] if item["status"] == "problem"]
    assert (status, problems) == (0, [])
    checks = {(item["area"], item["check"]): item for item in data["checks"]}
    assert checks["backend:cpu", "device"]["data"]["available"] is True
    assert checks["backend:cpu", "torch"]["status"] == "ok"
    assert checks["core", "native"]["data"]["library"].endswith(".so")
    assert set(checks["model", "plan"]["data"]["ops"].values()) == {"deepinfer-cpu"}
    assert checks["model", "checkpoint"]["detail"].endswith(" tensors in 1 file")
    assert checks["model", "memory"]["data"]["num_draft"] == 3
    assert checks["model", "memory"]["data"]["nbytes"] <= checks["model", "memory"]["data"]["kv_memory"]


def test_examination_reads_headers_and_scales_and_no_weights(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deepinfer_v41.weights.index import ShardSet

    read = ShardSet.read

    def refuse(self: ShardSet, name: str) -> Any:
        if not name.endswith(".scale"):
            raise AssertionError(f"{name} was read")
        return read(self, name)

    monkeypatch.setattr(ShardSet, "read", refuse)
    found = examined(model=str(shipped))
    assert (found["checkpoint"].status, found["memory"].status) == ("ok", "ok")


def test_checkpoint_with_a_wrong_index_is_a_problem_and_memory_is_planned_all_the_same(model: Path) -> None:
    def damage(index: dict[str, Any]) -> None:
        index["weight_map"]["norm.weight"] = "model-9.safetensors"
        del index["weight_map"]["head.weight"]

    replace_json(model / "model.safetensors.index.json", damage)
    found = examined(model=str(model))
    checkpoint = found["checkpoint"]
    assert (checkpoint.status, checkpoint.code) == ("problem", "E_CHECKPOINT")
    assert "model-9.safetensors: the index names it for norm.weight" in checkpoint.detail
    assert "head.weight (model.safetensors), which the index does not name" in checkpoint.detail
    assert found["memory"].status == "ok"


def test_settings_that_the_model_cannot_meet_are_problems_with_their_remedies(shipped: Path) -> None:
    small = examined(model=str(shipped), kv_memory=1024)
    assert (small["memory"].status, small["memory"].code) == ("problem", "E_CAPACITY")
    assert small["memory"].remedy.startswith("set --kv-memory to ")
    drafts = examined(model=str(shipped), draft_tokens=15)
    assert (drafts["memory"].code, drafts["memory"].detail) == (
        "E_CONFIG",
        "draft_tokens is 15, the limit of this model is 4",
    )
