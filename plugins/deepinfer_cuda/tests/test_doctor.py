"""What ``deepinfer doctor cuda`` says on machines that lack something."""

import os

import pytest

from deepinfer_core.types import HostInfo, ProbeReport
from deepinfer_cuda import doctor
from deepinfer_cuda.torch_build import TorchBuild

HOST = HostInfo(os="linux", machine="x86_64", python="3.11.7")
GOOD = ProbeReport(True, True, ("NVIDIA H200 (sm_90)",), arch="sm_90", driver="NVIDIA 580.65.06, CUDA 13.0", score=100)
CUDA_TORCH = TorchBuild("2.11.0+cu130", (13, 0))


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """``machine(...)``: the checks there, by name."""

    def make(*, report=GOOD, nvcc="13.0", cxx="g++", torch=CUDA_TORCH, kernels=0, writable=True):
        monkeypatch.setenv("DEEPINFER_CUDA_CACHE", str(tmp_path))
        monkeypatch.setattr(doctor, "probe", lambda host: report)
        monkeypatch.setattr(doctor, "toolkit_version", lambda: nvcc)
        monkeypatch.setattr("deepinfer_cuda.jit.folder.toolkit_version", lambda: nvcc)
        monkeypatch.setattr(doctor, "nvcc", lambda: "/usr/local/cuda/bin/nvcc")
        monkeypatch.setattr(doctor, "host_compiler", lambda: cxx)
        monkeypatch.setattr(doctor, "torch_build", lambda: torch)
        for index in range(kernels):
            folder = tmp_path / f"tilelang-{doctor.tilelang_version()}" / "cuda-13.0" / "sm_90a" / str(index)
            folder.mkdir(parents=True)
            (folder / "executable.so").touch()
        if not writable:
            monkeypatch.setattr(os, "access", lambda path, mode: False)
        return {check.name: check for check in doctor.checks(HOST)}

    return make


def test_all_is_well(machine, tmp_path):
    found = machine(kernels=2)
    assert {check.status for check in found.values()} == {"ok"}
    assert found["torch"].detail == "2.11.0+cu130, built for CUDA 13.0"
    assert found["compiler"].detail.startswith("nvcc 13.0 (/usr/local/cuda/bin/nvcc), g++, tilelang ")
    assert found["kernels"].detail == f"2 for sm_90a kept in {tmp_path}"


def problem(check):
    assert check.status == "problem"
    assert check.reason
    assert check.remedy
    return check.detail


@pytest.mark.parametrize(("given", "what"), [({"nvcc": ""}, "no nvcc"), ({"cxx": ""}, "no C++ compiler for nvcc")])
def test_a_missing_compiler_is_a_problem(machine, given, what):
    assert problem(machine(**given)["compiler"]) == what


def test_a_missing_compiler_beside_compiled_kernels_is_a_note(machine):
    found = machine(nvcc="", kernels=3)["compiler"]
    assert found.status == "note"
    assert found.detail == "no nvcc; 3 compiled kernels for sm_90a are there, a size without one will be refused"


def test_a_compiler_newer_than_the_driver_is_a_problem(machine):
    report = ProbeReport(True, True, ("NVIDIA H200 (sm_90)",), arch="sm_90", driver="NVIDIA 570.10, CUDA 12.8")
    found = machine(report=report)["compiler"]
    assert problem(found) == "nvcc 13.0 makes kernels that this driver cannot load"
    assert found.reason == "the driver runs CUDA 12.8"


@pytest.mark.parametrize(
    ("build", "what"),
    [
        (TorchBuild("2.13.0+cpu", None), "torch 2.13.0+cpu is built without CUDA"),
        (TorchBuild(), "torch is not installed"),
    ],
)
def test_torch_without_cuda_is_a_problem(machine, build, what):
    assert problem(machine(torch=build)["torch"]) == what


def test_a_cache_that_cannot_be_written_is_a_problem(machine, tmp_path):
    found = machine(writable=False)["kernels"]
    assert problem(found) == f"compiled kernels cannot be kept in {tmp_path}"
    assert found.remedy == "set DEEPINFER_CUDA_CACHE to one that can"


def test_named_vendor_libraries_are_told_with_their_version(machine, monkeypatch):
    monkeypatch.setenv("DEEPINFER_CUDA_VENDORS", "gemm")
    monkeypatch.setattr("deepinfer_cuda.vendor.loading.version", lambda name: "2.9.0")
    found = machine()["vendor gemm"]
    assert (found.status, found.detail) == ("ok", "deepinfer-gemm 2.9.0")


@pytest.mark.parametrize(
    ("named", "what"),
    [
        ("flashmla", "vendor library 'flashmla' cannot be used"),
        ("gem", "DEEPINFER_CUDA_VENDORS names 'gem', which is no vendor library; did you mean 'gemm'?"),
    ],
)
def test_a_named_vendor_library_that_is_not_there_is_a_problem(machine, monkeypatch, named, what):
    monkeypatch.setenv("DEEPINFER_CUDA_VENDORS", named)
    assert problem(machine()["vendors"]) == what
