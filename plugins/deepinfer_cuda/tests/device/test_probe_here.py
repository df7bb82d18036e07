"""The probe beside torch: the same devices, and no context of its own."""

import os
import platform
import subprocess
import sys

import pytest
import torch

from deepinfer_core.types import HostInfo
from deepinfer_cuda import nvml
from deepinfer_cuda.probe import probe, visible

pytestmark = pytest.mark.cuda

CHILD = """
import os, sys
from deepinfer_core.types import HostInfo
from deepinfer_cuda.probe import probe
report = probe(HostInfo("linux", "x86_64", "3"))
opened = {os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
print(report.usable, "torch" in sys.modules, any("nvidia-uvm" in path for path in opened))
"""


def test_probe_finds_the_devices_that_torch_finds():
    seen, _ = visible(nvml.read().devices, os.environ)
    assert [device.capability for device in seen] == [
        torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())
    ]
    report = probe(HostInfo(sys.platform, platform.machine(), platform.python_version()))
    assert report.usable
    assert torch.cuda.get_device_name(0) in report.devices[0]


def test_probe_opens_no_context():
    """A context maps memory of the device through ``/dev/nvidia-uvm``; NVML does not."""
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "True False False\n"
