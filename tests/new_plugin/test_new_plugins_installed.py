"""A new plugin of each kind, installed as users install it: listed, checked, used, judged by the conformance kit."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from fake_venv import FakeVenv, build_wheels, missing_tools

WHEELS = ("backend", "sampler", "grammar")  # the others are installed in place (pip install -e)
KIT_AT_ONCE = ("model", "sampler", "logits-filter", "grammar", "scorer", "extension")
USE = """
import sys
from deepinfer_core import LLM, SamplingParams
greedy = SamplingParams(max_tokens=3, temperature=0)
with LLM(backend="acme_backend", grammar_engine="acme_grammar") as llm:
    [plain] = llm.generate("import os", greedy)
    ban = {"name": "acme_logits_filter", "params": {"ids": list(plain.token_ids)}}
    best = {"name": "acme_sampler", "params": {"min_p": 1.0}}
    asked = [
        SamplingParams(max_tokens=3, sampler=best),
        greedy.updated({"logits_filters": [ban]}),
        SamplingParams(regex="yes|no"),
    ]
    named, banned, word = llm.generate(["import os"] * 3, asked)
    assert not [o.error for o in (plain, named, banned, word) if o.error]
    plan = llm.assembly.backend.plan
print([plain.token_ids == named.token_ids, set(plain.token_ids) & set(banned.token_ids), word.text in ("yes", "no")])
print(plan["norm.rms"], plan["gemm.dense"], plan["meta.feed_tokens"])
"""


@pytest.fixture(scope="session")
def venv(projects: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> FakeVenv:
    """A venv with all of them installed."""
    missing = missing_tools()
    if missing:
        pytest.skip(f"new plugins are installed with {missing}, which is not here")
    pytest.importorskip("torch")
    made = FakeVenv.create(tmp_path_factory.mktemp("venv") / "venv")
    wheels = build_wheels([projects[kind] for kind in WHEELS], tmp_path_factory.mktemp("wheels"))
    in_place = [str(projects[kind]) for kind in projects if kind not in WHEELS]
    made.install(*wheels, *(word for folder in in_place for word in ("-e", folder)))
    return made


def python(venv: FakeVenv, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [str(venv.python), *arguments]
    environment = venv.environment()
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)


def data_of(done: subprocess.CompletedProcess[str]) -> Any:
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return json.loads(done.stdout)


def test_new_plugins_are_listed_as_found(venv: FakeVenv) -> None:
    listed = data_of(venv.run("plugins", "--json"))
    ours = {item["name"]: item for item in listed["plugins"] if item["name"].startswith("acme_")}
    kinds = ("backend", "model", "sampler", "logits_filter", "grammar", "scorer", "extension")
    assert {name: (item["kind"], item["state"]) for name, item in ours.items()} == {
        f"acme_{kind}": (kind, "found") for kind in kinds
    }
    assert {name for name, item in ours.items() if item["editable"]} == {
        "acme_model",
        "acme_logits_filter",
        "acme_scorer",
        "acme_extension",
    }
    assert listed["unusable"] == 0


@pytest.mark.parametrize("kind", ["backend", "model", "sampler", "logits-filter", "grammar", "scorer", "extension"])
def test_plugins_check_of_a_new_plugin_finds_nothing(venv: FakeVenv, projects: dict[str, Path], kind: str) -> None:
    done = venv.run("plugins", "check", str(projects[kind]))
    assert done.stdout.endswith("0 problems, 0 warnings. Nothing was imported.\n")
    assert done.returncode == 0


def test_new_parts_work_together_in_one_engine(venv: FakeVenv, tmp_path: Path) -> None:
    done = python(venv, "-c", USE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[True, set(), True]\ndeepinfer-acme-backend deepinfer-cpu deepinfer-cpu\n"
    assert "backend: acme_backend (chosen by " in done.stderr


def test_new_model_generates_with_its_checkpoint_and_changes_no_default(venv: FakeVenv) -> None:
    done = venv.run("generate", "--model-plugin", "acme_model", "--seed", "1", "--max-tokens", "20", "The ")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    done = venv.run("generate", "--max-tokens", "2", "--temperature", "0", "import os")
    assert (done.returncode, done.stderr) == (0, "backend: cpu (auto: no accelerator present)\n")


def test_new_extension_sums_up_a_result_file(venv: FakeVenv, tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    file.write_text('{"num_output_tokens": 3, "finish_reason": "length"}\n')
    done = venv.run("--plugin", "acme_extension", "acme-extension", str(file))
    assert (done.stdout, done.stderr) == ("1 results, 3 tokens; ended by: 1 length\n", "")
    done = venv.run("deepinfer-acme-extension.acme-extension", str(tmp_path / "none"))
    assert done.returncode == 2
    assert done.stderr.startswith(f"deepinfer: E_INPUT: cannot read {tmp_path}/none\n")


@pytest.mark.parametrize("kind", [*KIT_AT_ONCE, pytest.param("backend", marks=pytest.mark.slow)])
def test_new_plugin_passes_smoke(venv: FakeVenv, tmp_path: Path, kind: str) -> None:
    name = f"acme_{kind.replace('-', '_')}"
    kit = ("--pyargs", "deepinfer_core.conformance", f"--{kind}", name, "--level", "smoke")
    done = python(venv, "-m", "pytest", "-q", "-p", "no:cacheprovider", *kit, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ": passed level smoke: " in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["backend", "model", "sampler", "logits-filter", "grammar", "scorer", "extension"])
def test_tests_of_a_new_plugin_pass(venv: FakeVenv, projects: dict[str, Path], kind: str) -> None:
    done = python(venv, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=projects[kind])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_shipped_checkpoint_is_what_its_script_makes(venv: FakeVenv, projects: dict[str, Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file

    project = projects["model"]
    module = "deepinfer_acme_model.make_checkpoint"
    done = python(venv, "-m", module, str(project / "training_text.txt"), str(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shipped = project / "src" / "deepinfer_acme_model" / "checkpoint"
    for name in ("config.json", "tokenizer.json"):
        assert json.loads((tmp_path / name).read_text()) == json.loads((shipped / name).read_text())
    made, held = load_file(tmp_path / "model.safetensors"), load_file(shipped / "model.safetensors")
    # The product is what counts: another library may choose other signs of the vectors.
    products = [w["embed.weight"].float() @ w["head.weight"].float().T for w in (made, held)]
    assert (products[0] - products[1]).abs().max() < 0.2
