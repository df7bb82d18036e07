"""What new-plugin writes is clean under ruff and mypy.

The session ``types`` has both tools, and no torch: where it is installed, mypy reads all of it in each run.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deepinfer_core.cli import main

RULES = "E,F,W,I,B,UP,SIM,RUF,C4,PIE,PT,RET,T20,ISC"
LONGEST = "abcdefghijklmnopqrstuvwxyz_12345"


def require_tool(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed here; the nox session types has it")


def run_tool(*command: str, cwd: Path, **environ: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=cwd,
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["a", LONGEST])
@pytest.mark.parametrize("kind", ["backend", "model", "sampler", "logits-filter", "grammar", "scorer", "extension"])
def test_new_plugin_is_clean_under_ruff(tmp_path: Path, kind: str, name: str) -> None:
    require_tool("ruff")
    assert main(["new-plugin", kind, name, "--dir", str(tmp_path)]) == 0
    [project] = tmp_path.iterdir()
    run_tool("ruff", "check", "--no-cache", ".", cwd=project)
    run_tool("ruff", "check", "--no-cache", "--isolated", "--line-length", "120", "--select", RULES, ".", cwd=project)
    run_tool("ruff", "format", "--no-cache", "--check", ".", cwd=project)


def test_new_plugins_are_clean_under_mypy(projects: dict[str, Path]) -> None:
    """All in one run, because mypy reads numpy and the core anew in each; so one test of the kit stands for all."""
    require_tool("mypy")
    sources = [project / "src" for project in projects.values()]
    tests = {file.name: file for project in projects.values() for file in (project / "tests").glob("*.py")}
    files = [*(file for source in sources for file in source.rglob("*.py")), *tests.values()]
    run_tool(
        "mypy",
        "--config-file",
        str(projects["backend"] / "pyproject.toml"),
        "--cache-dir",
        os.devnull,
        *map(str, files),
        cwd=projects["backend"],
        MYPYPATH=os.pathsep.join([*map(str, sources), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
    )
