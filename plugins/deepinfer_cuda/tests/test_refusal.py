"""On a machine without a device the backend refuses, and ``auto`` does not look at it."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(bool(list(Path("/dev").glob("nvidia[0-9]*"))), reason="this machine has a device")


def deepinfer(*arguments):
    command = [sys.executable, "-m", "deepinfer_core.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_backend_cuda_is_refused_with_reason_and_remedy():
    done = deepinfer("generate", "--backend", "cuda", "x")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        "deepinfer: E_BACKEND_UNAVAILABLE: backend cuda (deepinfer-cuda 0.1.0) was requested but cannot be used here\n"
        "  reason: no device node /dev/nvidia*\n"
        "  remedy: install the NVIDIA driver, r580 or newer for CUDA 13; or choose --backend cpu\n"
    )


def test_auto_takes_cpu():
    done = deepinfer("generate", "--max-tokens", "1", "x")
    assert done.returncode == 0
    assert done.stderr == "backend: cpu (auto: no accelerator present)\n"
