"""On a machine without an NPU the backend refuses with status 3, and ``auto`` does not look at it."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(bool(list(Path("/dev").glob("davinci[0-9]*"))), reason="this machine has a device")


ASKED = "backend ascend (deepinfer-ascend 0.1.0)"
HOST = "run on an Ascend 950 host with CANN >= 9.2 and the torch-npu of your torch"


def deepinfer(*arguments):
    command = [sys.executable, "-m", "deepinfer_core.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_backend_ascend_is_refused_with_every_reason_and_the_remedies():
    done = deepinfer("generate", "--backend", "ascend", "x")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.splitlines() == [
        f"deepinfer: E_BACKEND_UNAVAILABLE: {ASKED} was requested but cannot be used here",
        "  reason: no device node /dev/davinci*; CANN is not installed; torch-npu is not installed",
        f"  remedy: {HOST}; --emulate runs the plugin's code on the processor; or choose --backend cpu",
    ]


def test_doctor_asks_the_named_backend_though_there_is_no_device():
    done = deepinfer("doctor", "ascend")
    assert done.returncode == 1
    told = [line.split() for line in done.stdout.splitlines()]  # how wide a column is, the longest name decides
    assert ["PROBLEM", "nodes", "no", "device", "node", "/dev/davinci*"] in told
    assert "install CANN 9.2 or newer, toolkit and ops, and source" in done.stdout
