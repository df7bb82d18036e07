"""In a clone whose environment has pytest and not pytest-timeout, as the tutorials install it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_pytest_runs_in_a_clone_without_pytest_timeout() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:timeout", "--collect-only", "-q", __file__]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Unknown config option" not in done.stdout + done.stderr
