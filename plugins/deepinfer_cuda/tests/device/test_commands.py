"""Commands as a person gives them, each a process of its own: ``doctor cuda``, and texts that are those of ``cpu``."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.cuda


def run(*args):
    command = [sys.executable, "-c", "import sys; from deepinfer_core.cli import main; sys.exit(main())", *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_doctor_finds_the_device_usable(cuda):
    import torch

    told = run("doctor", "cuda")
    assert torch.cuda.get_device_name(cuda) in told


def test_a_greedy_text_is_that_of_cpu():
    greedy = ("--numeric-mode", "exact", "--temperature", "0", "--max-tokens", "24")
    found = {}
    for backend in ("cuda", "cpu"):
        found[backend] = json.loads(run("--json", "generate", "import os", "--backend", backend, *greedy))
    for part in ("text", "token_ids", "finish_reason"):
        assert found["cuda"][part] == found["cpu"][part]
