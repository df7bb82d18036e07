"""Ten ways in which a set-up breaks, and three of kernels: what probe and doctor say of each, and the remedy."""

import os

import pytest
from fake_machine import LIBRARIES, NODES

from deepinfer_ascend.jit.toolchain import toolchain

ELSE = "--emulate runs the plugin's code on the processor; or choose --backend cpu"
ABSENT, UNUSABLE, USABLE = (False, False), (True, False), (True, True)


def test_a_whole_machine_is_usable(machine):
    found = machine()
    assert found.report.usable
    assert {check.status for check in found.doctor.values()} == {"ok"}
    assert list(found.doctor) == [
        "nodes", "permission", "driver", "visibility", "architecture", "CANN", "set_env", "driver and CANN",
        "libraries", "torch", "kernels", "import torch", "memory",
    ]  # fmt: skip


# What is broken -> check that finds it, state of the device, what is said, what helps.
IMPORT_FAILS = (
    "import torch fails: RuntimeError: Failed to load the backend extension: torch_npu. You can disable extension "
    "auto-loading with TORCH_DEVICE_BACKEND_AUTOLOAD=0."
)
FILES = " ".join(f"--device /dev/{name}" for name in NODES)
BROKEN = {
    "set_env.sh not sourced": (
        {"sourced": False}, "set_env", UNUSABLE, "the environment of CANN is not set",
        "source {root}/usr/local/Ascend/cann/set_env.sh, in this shell",
    ),
    "CANN too old": (
        {"cann": "8.5.0"}, "CANN", UNUSABLE, "CANN 8.5.0 in {root}/usr/local/Ascend/cann is too old",
        "install CANN 9.2 or newer",
    ),
    "torch and torch-npu mismatched": (
        {"pair": ("2.14.1", "2.13.0")}, "torch", UNUSABLE,
        "torch-npu 2.13.0 is made for torch 2.13.0, and torch 2.14.1 is here",
        "pip install torch==2.13.0, or the torch-npu of torch 2.14.1",
    ),
    "driver older than CANN": (
        {"hal": "7.40.1"}, "driver and CANN", UNUSABLE, "driver 25.5.2 is older than CANN 9.2.0 needs",
        "update driver and firmware, or install an older CANN",
    ),
    "no davinci node in the container": (
        {"nodes": ()}, "nodes", ABSENT, "no device node /dev/davinci*",
        f"start the container with {FILES}",
    ),
    "libhccl missing": (
        {"libraries": LIBRARIES[:1]}, "libraries", UNUSABLE, "libhccl.so not found",
        (
            "source {root}/usr/local/Ascend/cann/set_env.sh; where it is not in that CANN either, install its toolkit "
            "again"
        ),
    ),
    "visible-device variables disagree": (
        {"ASCEND_RT_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0,1"}, "visibility", UNUSABLE,
        "ASCEND_RT_VISIBLE_DEVICES=0 and CUDA_VISIBLE_DEVICES=0,1 name different devices",
        "unset CUDA_VISIBLE_DEVICES, or set both to the value of ASCEND_RT_VISIBLE_DEVICES",
    ),
    "autoload breaks import torch": (
        {"import_fails": True}, "import torch", USABLE, IMPORT_FAILS,
        (
            "source set_env.sh of CANN; or export TORCH_DEVICE_BACKEND_AUTOLOAD=0; or pip uninstall torch-npu where "
            "there is no NPU"
        ),
    ),
    "compiler of kernels missing": (
        {"tools": ("ld.lld",)}, "kernels", USABLE, "bisheng not found",
        "source set_env.sh of CANN, or set BISHENG_HOME to the folder that has bin/bisheng",
    ),
    "linker of kernels missing": (
        {"tools": ("bisheng",)}, "kernels", USABLE, "ld.lld not found",
        "source set_env.sh of CANN, or set BISHENG_HOME to the folder that has bin/bisheng",
    ),
    "no C++ compiler for launchers": (
        {"host_compiler": False}, "kernels", USABLE, "a C++ compiler not found", "install g++",
    ),
    "device full": (
        {"used": 131_000}, "memory", USABLE, "no device has memory left: device 0: 72 of 131,072 MiB free",
        "end them, or choose another device with ASCEND_RT_VISIBLE_DEVICES",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_set_up_is_told_with_its_remedy(machine, name, tmp_path):
    broken, check, state, what, remedy = BROKEN[name]
    found = machine(**broken)
    told = found.doctor[check]
    assert told.status == "problem"
    assert told.detail == what.format(root=tmp_path)
    assert told.remedy == remedy.format(root=tmp_path)
    report = found.report
    assert (report.present, report.usable) == state
    if not report.usable:
        assert any(told.detail in reason for reason in report.reasons)
        assert report.remedy == f"{told.remedy}; {ELSE}"


def test_no_permission_names_the_files(machine, monkeypatch):
    found = machine()
    monkeypatch.setattr(os, "access", lambda path, mode: path.name not in ("davinci0", "hisi_hdc"))
    told = found.doctor["permission"]
    assert told.detail == "no permission to use /dev/hisi_hdc, /dev/davinci0"
    assert "HwHiAiUser" in told.remedy
    assert found.report.reasons == (f"{told.detail}: they belong to another user or group",)


def test_processes_that_hold_the_device_are_named(machine):
    assert machine(used=131_000).doctor["memory"].reason == "processes 4242 hold it"


def test_without_tilelang_ops_are_plain_and_that_is_a_note(machine):
    told = machine(tilelang=False).doctor["kernels"]
    assert (told.status, told.remedy) == ("note", "pip install 'deepinfer-ascend[kernels]'")


def test_a_compiler_of_a_folder_that_is_named_comes_before_that_of_the_path(tmp_path):
    for folder in ("named", "path"):
        (tmp_path / folder / "bin").mkdir(parents=True)
        (tmp_path / folder / "bin" / "bisheng").touch()
    found = toolchain({"BISHENG_HOME": "/named", "PATH": "/path/bin"}, tmp_path)
    assert found.bisheng == tmp_path / "named" / "bin" / "bisheng"
    (tmp_path / "named" / "bin" / "ld.lld").touch()
    assert toolchain({"PATH": "/named/bin"}, tmp_path).linker == tmp_path / "named" / "bin" / "ld.lld"


def test_a_container_without_a_manager_file_is_told(machine):
    told = machine(nodes=NODES[:2]).doctor["nodes"]
    assert told.detail == "no /dev/devmm_svm, /dev/hisi_hdc beside the devices"


def test_nothing_at_all_names_every_thing_that_is_missing(machine):
    report = machine(nodes=(), driver=False, cann="", pair=("2.13.0", "")).report
    assert (report.present, report.usable) == ABSENT
    assert report.reasons == ("no device node /dev/davinci*", "CANN is not installed", "torch-npu is not installed")
    assert report.remedy.startswith("run on an Ascend 950 host with CANN >= 9.2")
