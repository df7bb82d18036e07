"""The probe on machines that are faked as file trees: each step, its reason and its remedy."""

import os
import subprocess
import sys

import pytest

from deepinfer_core.types import HostInfo
from deepinfer_cuda import nvml
from deepinfer_cuda import probe as probing
from deepinfer_cuda.torch_build import TorchBuild, torch_build

HOST = HostInfo(os="linux", machine="x86_64", python="3.11.7")
VERSION = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\nGCC version:  gcc 12\n"
H200 = nvml.Device("NVIDIA H200", "GPU-aa11", (9, 0), 1)
B200 = nvml.Device("NVIDIA B200", "GPU-cc33", (10, 0), 1)
T4 = nvml.Device("Tesla T4", "GPU-bb22", (7, 5), 1)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """``machine(devices=..., cuda=..., torch=...)``: the report of the probe there."""

    def make(
        *, devices=(H200,), nodes=("nvidiactl", "nvidia0"), driver=True, cuda=(13, 0), error="", torch=(13, 0), **env
    ):
        (tmp_path / "dev").mkdir(exist_ok=True)
        for name in nodes:
            (tmp_path / "dev" / name).touch()
        if driver:
            (tmp_path / "proc/driver/nvidia").mkdir(parents=True, exist_ok=True)
            (tmp_path / "proc/driver/nvidia/version").write_text(VERSION)

        def read():
            if error:
                raise nvml.NvmlError(error)
            return nvml.Found("580.65.06", cuda, tuple(devices))

        monkeypatch.setattr(nvml, "read", read)
        build = TorchBuild("2.11.0", torch) if torch != "absent" else TorchBuild()
        monkeypatch.setattr(probing, "torch_build", lambda: build)
        return probing.probe(HOST, tmp_path, env)

    return make


def test_a_supported_device_is_usable(machine):
    report = machine()
    assert (report.present, report.usable, report.arch, report.score) == (True, True, "sm_90", 100)
    assert report.devices == ("NVIDIA H200 (sm_90)",)
    assert report.driver == "NVIDIA 580.65.06, CUDA 13.0"


def test_a_hidden_driver_file_does_not_matter_where_nvml_answers(machine):
    assert machine(driver=False).usable


@pytest.mark.parametrize(("devices", "arch"), [((B200,), "sm_100"), ((T4, H200), "sm_90")])
def test_the_architecture_is_that_of_the_first_device_with_kernels(machine, devices, arch):
    report = machine(devices=devices)
    assert report.usable
    assert report.arch == arch


ABSENT = [
    ({"nodes": (), "driver": False}, "no device node /dev/nvidia*"),
    ({"nodes": ()}, "no device node /dev/nvidia*; its driver is loaded: start the container with its devices"),
]
UNUSABLE = [
    (
        {"driver": False, "error": "libnvidia-ml.so.1 of the driver cannot be loaded"},
        (
            "libnvidia-ml.so.1 of the driver cannot be loaded; and no driver is loaded, /proc/driver/nvidia/version is "
            "not there"
        ),
    ),
    ({"error": "nvmlInit_v2 of NVML failed: Driver Not Loaded"}, "nvmlInit_v2 of NVML failed: Driver Not Loaded"),
    ({"devices": ()}, "the driver offers no device"),
    ({"devices": (T4,)}, "found Tesla T4 (sm_75); kernels exist for sm_90, sm_100, sm_103"),
    ({"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES='' hides every device"),
    ({"CUDA_VISIBLE_DEVICES": "3"}, "CUDA_VISIBLE_DEVICES='3' hides every device"),
    ({"torch": None}, "torch 2.11.0 is built without CUDA"),
    ({"torch": "absent"}, "torch is not installed"),
    ({"cuda": (12, 8)}, "driver 580.65.06 runs CUDA 12.8, torch 2.11.0 is built for CUDA 13.0"),
]


@pytest.mark.parametrize(("given", "reason"), ABSENT)
def test_no_device_is_not_present_so_that_auto_takes_cpu(machine, given, reason):
    report = machine(**given)
    assert (report.present, report.usable, report.reasons) == (False, False, (reason,))
    assert report.remedy


@pytest.mark.parametrize(("given", "reason"), UNUSABLE)
def test_a_device_that_cannot_be_used_is_present_with_the_reason(machine, given, reason):
    report = machine(**given)
    assert (report.present, report.usable, report.reasons) == (True, False, (reason,))
    assert report.remedy


def test_closed_device_nodes_are_named(machine, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path.name != "nvidia0")
    assert machine().reasons == ("no permission to use /dev/nvidia0",)


def test_another_system_is_not_asked_for_devices():
    report = probing.probe(HostInfo(os="darwin", machine="arm64", python="3.12.1"))
    assert report.reasons == ("NVIDIA devices are used on linux, this is darwin",)


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ("1,0", [T4, H200]),
        ("GPU-bb", [T4]),
        ("0,7,1", [H200]),  # as CUDA does: the list ends at what names no device
        ("GPU-", []),  # the beginning of two
        ("MIG-4e7a", [H200, T4]),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(listed, names):
    assert probing.visible([H200, T4], {"CUDA_VISIBLE_DEVICES": listed})[0] == names


def test_torch_build_agrees_with_torch():
    import torch

    built = torch_build()
    told = f"{built.cuda[0]}.{built.cuda[1]}" if built.cuda else None
    assert (built.version, told) == (torch.__version__, torch.version.cuda)


def test_probe_imports_neither_torch_nor_tilelang():
    code = (
        "import sys; from deepinfer_core.types import HostInfo; from deepinfer_cuda.probe import probe; "
        "probe(HostInfo('linux', 'x86_64', '3')); print(sorted({'torch', 'tilelang'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
