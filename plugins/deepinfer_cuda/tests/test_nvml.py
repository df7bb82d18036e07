"""NVML through ctypes, with a library of C in its place."""

import subprocess
from pathlib import Path

import pytest

from deepinfer_cuda import nvml

SOURCE = Path(__file__).parent / "fake_nvml.c"


@pytest.fixture
def library(monkeypatch, tmp_path):
    def build(fail=""):
        out = tmp_path / "libfake.so"
        subprocess.run(["cc", "-shared", "-fPIC", f'-DFAIL="{fail}"', "-o", out, SOURCE], check=True)
        monkeypatch.setattr(nvml, "LIBRARY", str(out))

    return build


def test_read_tells_driver_and_devices(library):
    library()
    h200 = nvml.Device("NVIDIA H200", "GPU-aa11", (9, 0), 150754820096)
    t4 = nvml.Device("Tesla T4", "GPU-bb22", (7, 5), 16106127360)
    assert nvml.read() == nvml.Found("580.65.06", (13, 1), (h200, t4))


@pytest.mark.parametrize("name", ["nvmlInit_v2", "nvmlSystemGetCudaDriverVersion_v2", "nvmlDeviceGetCount_v2"])
def test_a_call_that_fails_is_named_with_the_librarys_words(library, name):
    library(fail=name)
    with pytest.raises(nvml.NvmlError, match=f"{name} of NVML failed: Driver Not Loaded"):
        nvml.read()


def test_no_library_is_an_error_with_its_name(monkeypatch):
    monkeypatch.setattr(nvml, "LIBRARY", "libnvidia-ml-that-is-not-there.so.1")
    with pytest.raises(nvml.NvmlError, match=r"libnvidia-ml-that-is-not-there\.so\.1 of the driver cannot be loaded"):
        nvml.read()


def test_a_library_without_a_call_is_too_old(monkeypatch):
    monkeypatch.setattr(nvml, "LIBRARY", "libc.so.6")
    with pytest.raises(nvml.NvmlError, match=r"libc.so.6 has no nvmlInit_v2: the driver is too old"):
        nvml.read()
