"""Ten ways in which a set-up breaks, and more beside them: what probe and doctor say of each, and the remedy."""

import grp
import os
import pwd

import pytest
from fake_machine import LIBRARIES, NODES

from deepinfer_ascend import dcmi
from deepinfer_ascend.facts import memory_check
from deepinfer_ascend.jit.toolchain import toolchain
from deepinfer_ascend.owner import Owner

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
    "auto-loading with TORCH_DEVICE_BACKEND_AUTOLOAD=0. (from ImportError: libhccl.so: cannot open shared object "
    "file: No such file or directory)"
)
INSTALL = "install CANN 9.2 or newer, toolkit and ops, and source its set_env.sh"
DRIVER = "/usr/local/Ascend/driver"
FILES = " ".join(f"--device /dev/{name}" for name in NODES)
BROKEN = {
    "set_env.sh not sourced": (
        {"sourced": False}, "set_env", UNUSABLE, "the environment of CANN is not set",
        "source {root}/usr/local/Ascend/cann/set_env.sh, in this shell",
    ),
    "CANN too old": (
        {"cann": "8.5.0"}, "CANN", UNUSABLE, "CANN 8.5.0 in {root}/usr/local/Ascend/cann is too old",
        INSTALL,
    ),
    "CANN that is not where the environment says": (
        {"ASCEND_HOME_PATH": "/opt/cann"}, "CANN", UNUSABLE,
        "CANN is not there: ASCEND_HOME_PATH=/opt/cann is no folder",
        f"unset it, or {INSTALL}",
    ),
    "torch and torch-npu mismatched": (
        {"pair": ("2.14.1", "2.13.0")}, "torch", UNUSABLE,
        "torch-npu 2.13.0 is made for torch 2.13.0, and torch 2.14.1 is here",
        "pip install torch==2.13.0, or pip install torch-npu==2.14.1",
    ),
    "driver older than CANN": (
        {"hal": "7.40.1"}, "driver and CANN", UNUSABLE, "driver 25.5.2 is older than CANN 9.2.0 needs",
        "update driver and firmware, which are the host's, or install an older CANN",
    ),
    "no davinci node in the container": (
        {"nodes": (), "container": True}, "nodes", ABSENT, "no device node /dev/davinci*",
        f"start the container with {FILES}, on a host that has an NPU",
    ),
    "a driver that made no davinci node": (
        {"nodes": ()}, "nodes", ABSENT, "no device node /dev/davinci*",
        f"run npu-smi info, and load or install the driver again; in a container, start the container with {FILES}",
    ),
    "a container without the host's driver": (
        {"driver": False, "container": True}, "driver", UNUSABLE,
        (
            "libdcmi.so of the driver cannot be loaded: libdcmi.so: cannot open shared object file: No such file or "
            "directory"
        ),
        f"start the container with -v {{root}}{DRIVER}:{{root}}{DRIVER}:ro",
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
            "source {root}/usr/local/Ascend/cann/set_env.sh; or export TORCH_DEVICE_BACKEND_AUTOLOAD=0, or pip "
            "uninstall torch-npu where there is no NPU"
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
        {"used": 131_000}, "memory", USABLE,
        "no device has memory left: device 0: 72 of 131,072 MiB free, held by process 4242",
        "end those processes; or choose another device with ASCEND_RT_VISIBLE_DEVICES",
    ),
    "a device that no program was left": (
        {"ASCEND_RT_VISIBLE_DEVICES": "3"}, "visibility", UNUSABLE, "ASCEND_RT_VISIBLE_DEVICES='3' hides every device",
        "set ASCEND_RT_VISIBLE_DEVICES to what is here: 0; or unset it",
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
    me, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(os.getegid()).gr_name
    assert told.reason == f"they belong to user {me} and group {group}; this process is of user {me}"
    joined = f"as root, usermod -aG {group} {me}, and log in again"
    assert told.remedy == f"{joined}; a container is started with --group-add {os.getegid()}"
    assert found.report.reasons == (f"{told.detail}: {told.reason}",)


def test_a_group_without_the_right_is_not_a_remedy():
    assert Owner("owner", "staff", 50, is_shared=False).remedy == (
        "run as owner, or let the group staff read and write them"
    )


@pytest.mark.parametrize(
    ("pair", "told", "remedy"),
    [
        (("", ""), "torch is not installed", "pip install torch==2.13.0 torch-npu==2.13.0"),
        (("", "2.14.0"), "torch is not installed", "pip install torch==2.14.0"),
        (("2.12.1+cpu", ""), "torch-npu is not installed", "pip install torch-npu==2.12.1"),
    ],
)
def test_what_is_lacking_of_torch_is_installed_beside_the_other(machine, pair, told, remedy):
    found = machine(pair=pair).doctor["torch"]
    assert (found.detail, found.reason, found.remedy) == (told, "", remedy)


def test_libraries_that_the_loader_knows_are_found(machine):
    found = machine(LD_LIBRARY_PATH="")
    found.write("etc/ld.so.conf.d/cann.conf", "/usr/local/Ascend/cann/lib64\n")
    assert found.report.usable


def test_a_held_device_with_memory_left_is_told_by_its_number(machine):
    found = machine(used=2048).doctor["memory"]
    assert (found.status, found.detail) == ("ok", "device 0: 129,024 of 131,072 MiB free, held by process 4242")
    full = dcmi.Device("950PR", 8 << 30, 8 << 30, number=3)
    told = memory_check([full])
    assert told.detail == "no device has memory left: device 3: 0 of 8,192 MiB free"
    assert told.remedy.startswith("run npu-smi info on the host, and end what holds it")


def test_a_container_of_any_machine_is_told_of_a_host_first(machine):
    found = machine(nodes=(), driver=False, container=True)
    assert found.report.reasons == ("no device node /dev/davinci*",)
    assert found.report.remedy.startswith("run on an Ascend 950 host with CANN >= 9.2")
    assert f"{FILES} -v " in found.doctor["nodes"].remedy


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
