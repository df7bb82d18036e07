"""DeepInfer's conformance kit, as users run it."""

import subprocess
import sys


def test_conformance() -> None:
    kit = ["--pyargs", "deepinfer_core.conformance", "--sampler", "entropy", "--level", "core"]
    command = [sys.executable, "-m", "pytest", "-q", *kit]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
