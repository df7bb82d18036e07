"""The probe beside the broken set-ups: devices, their names, and what it does not import."""

import subprocess
import sys

import pytest
from fake_machine import fake_dcmi

from deepinfer_ascend import dcmi
from deepinfer_ascend.arches import arch_of
from deepinfer_ascend.probe import probe
from deepinfer_ascend.visible import visible
from deepinfer_core.types import HostInfo


@pytest.mark.parametrize("v2", [True, False])
def test_a_device_is_named_by_either_interface_of_the_driver(machine, v2):
    report = machine(v2=v2).report
    assert (report.devices, report.arch) == (("950PR (ascend950)",), "ascend950")
    assert report.driver == "NPU driver 25.5.2"


def test_another_chip_is_present_and_not_usable(machine):
    report = machine(chip="910B3").report
    assert (report.present, report.usable, report.arch) == (True, False, "ascend910b")
    assert report.reasons == ("found 910B3 (ascend910b); kernels exist for ascend950",)


@pytest.mark.parametrize("name", ["dcmiv2_init", "dcmi_init", "dcmi_get_device_chip_info"])
def test_a_call_of_the_driver_that_fails_is_named(machine, name):
    report = machine(v2="v2" in name, fail=name).report
    assert report.reasons[0].startswith(f"{name} of DCMI failed with status -8005")


def test_a_driver_without_its_library_is_told(machine, tmp_path):
    found = machine()
    (tmp_path / "usr/local/Ascend/driver/lib64/driver/libdcmi.so").unlink()
    assert found.report.reasons[0].startswith("libdcmi.so of the driver cannot be loaded")


def test_dcmi_tells_memory_and_processes(tmp_path):
    (tmp_path / "lib64/driver").mkdir(parents=True)
    library = fake_dcmi('-DCHIP="950PR"', "-DUSED=2048", '-DFAIL=""')
    (tmp_path / "lib64/driver/libdcmi.so").write_bytes(library)
    assert dcmi.read(tmp_path) == (dcmi.Device("950PR", 131072 << 20, 2048 << 20, (4242,)),)


@pytest.mark.parametrize(
    ("chip", "arch"), [("950PR", "ascend950"), ("Ascend950PR_9599", "ascend950"), ("910B3", "ascend910b"), ("?", "")]
)
def test_names_of_architectures(chip, arch):
    assert arch_of(chip) == arch


@pytest.mark.parametrize(("listed", "chosen"), [("1,0", "ba"), ("0,7,1", "a"), ("", ""), ("x", "")])
def test_visible_devices_end_at_what_names_none(listed, chosen):
    found, hidden = visible("ab", {"ASCEND_RT_VISIBLE_DEVICES": listed})
    assert "".join(found) == chosen
    assert bool(hidden) == (not chosen)


def test_another_system_is_not_asked_for_devices():
    report = probe(HostInfo(os="darwin", machine="arm64", python="3.12.1"))
    assert report.reasons == ("Ascend devices are used on linux, this is darwin",)


def test_listing_and_probing_import_nothing_of_the_vendor():
    code = (
        "import sys; import deepinfer_ascend.plugin; from deepinfer_core.types import HostInfo; "
        "from deepinfer_ascend.probe import probe; probe(HostInfo('linux', 'x86_64', '3')); "
        "print(sorted({'torch', 'torch_npu', 'tilelang'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
