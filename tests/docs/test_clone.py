"""A clone in which somebody follows the pages: what they make there, and what they do not install."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(?:bash|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
MADE = re.compile(r"(?:(?<![0-9&])>|--out|--csv|--report[ =]|--baseline|\btouch) ?([a-z][\w./-]*\.[a-z]+)\b")
PLUGIN = re.compile(r"deepinfer new-plugin [a-z-]+ ([a-z_]+)")


def test_pytest_runs_in_a_clone_without_pytest_timeout() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:timeout", "--collect-only", "-q", __file__]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Unknown config option" not in done.stdout + done.stderr


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no clone")
def test_what_the_pages_make_in_a_clone_is_no_part_of_it() -> None:
    """Or ``nox`` would judge it, and ``git add`` take it."""
    made = {"first.py"}  # "Save this as"
    for page in PAGES:
        for block in BLOCK.findall(page.read_text("utf-8")):
            made.update(MADE.findall(block))
            made.update(f"deepinfer-{name.replace('_', '-')}/pyproject.toml" for name in PLUGIN.findall(block))
    made = {name for name in made if not name.startswith(("plugins/", "build/"))}
    assert {"prompts.jsonl", "watched.py", "decode.json", "deepinfer-first/pyproject.toml", "report.html"} <= made
    told = subprocess.run(
        ["git", "check-ignore", *sorted(made)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert made - set(told.stdout.split()) == set()
