"""The same trace on another revision's scheduler, built from git, the two taking turns on one core.

The other revision's ``deepinfer-contracts`` and ``deepinfer-native`` go into a folder of their own, kept by commit in
``.nox/revisions``; each turn is a process of this script (``--worker``) that finds them first.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / ".nox" / "revisions"
SCRIPT = ROOT / "benchmarks" / "scheduler.py"
DISTRIBUTIONS = ("contracts", "native")


class CannotBuild(RuntimeError):
    """The revision does not exist, or its distributions cannot be built here."""


@dataclass(frozen=True)
class Comparison:
    """Times of a case on this tree over those on the other revision, in microseconds a step."""

    name: str
    ours_us: float
    theirs_us: float
    ratio: float  # median of the ratios of neighbouring turns
    best_ratio: float  # best run over best run: other work on the machine hardly moves it

    def regresses(self, limit: float) -> bool:
        """Both ratios pass the limit; noise alone moves the first, not the second."""
        return self.ratio > limit and self.best_ratio > limit


def build(revision: str) -> tuple[str, Path]:
    """(commit, folder with its packages). Raises CannotBuild with what the tools said."""
    found = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        raise CannotBuild(f"git knows no revision {revision!r}")
    commit = found.stdout.strip()
    site = BUILT / commit[:16]
    if not site.is_dir():
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder) / "tree"
            run("git", "-C", str(ROOT), "worktree", "add", "--detach", "--quiet", str(tree), commit)
            try:
                target = Path(folder) / "site"
                install(target, tree)
                BUILT.mkdir(parents=True, exist_ok=True)
                shutil.move(target, site)
            finally:
                run("git", "-C", str(ROOT), "worktree", "remove", "--force", str(tree))
    return commit, site


def install(target: Path, tree: Path) -> None:
    """Both distributions of a tree, compiled, into ``target``; the environment's own setuptools if it has them."""
    has_tools = all(importlib.util.find_spec(name) for name in ("setuptools", "cffi"))
    isolation = ["--no-build-isolation"] if has_tools else []
    folders = [str(tree / name) for name in DISTRIBUTIONS]
    run(*installer(), "-q", "--no-deps", *isolation, "--target", str(target), *folders)


def installer() -> list[str]:
    """Of this environment: pip, or uv in one that uv made, which has no pip. Raises CannotBuild without either."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install"]
    if importlib.util.find_spec("uv") is not None:
        return [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable]
    raise CannotBuild("there is neither pip nor uv in this environment; install one of them")


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotBuild(f"{' '.join(command)}\n{done.stderr[-2000:]}")


def compare(site: Path, names: Sequence[str], options: Sequence[str], turns: int) -> tuple[list[Comparison], list[str]]:
    """Run the cases on both sides in turns; (comparisons, names of cases that one side cannot run)."""
    ours: dict[str, list[float]] = {}
    theirs: dict[str, list[float]] = {}
    for turn in range(turns):
        sides = [(ours, None), (theirs, site)]
        for found, where in sides if turn % 2 else reversed(sides):
            for row in worker(where, names, [*options, "--seed", str(turn)]):
                found.setdefault(row["name"], []).append(row["total_us"])
    both = [name for name in ours if name in theirs]
    return [comparison(name, ours[name], theirs[name]) for name in both], sorted(set(names) - set(both))


def comparison(name: str, ours: list[float], theirs: list[float]) -> Comparison:
    paired = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    return Comparison(
        name, statistics.median(ours), statistics.median(theirs), round(paired, 3), round(min(ours) / min(theirs), 3)
    )


def worker(site: Path | None, names: Sequence[str], options: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of one process, on the packages in ``site`` or on those of this environment."""
    environment = dict(os.environ)
    if site is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(site), environment.get("PYTHONPATH", "")])
    only = [part for name in names for part in ("--only", name)]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--worker", *only, *options],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode:
        raise RuntimeError(f"the worker of {site or 'this tree'} failed:\n{done.stderr[-2000:]}")
    return [json.loads(text) for text in done.stdout.splitlines()]
