"""A machine with one Ascend 950, as a file tree with a library of C in place of DCMI; any part of it may be broken.

Python's distributions are faked too: ``torch`` and ``torch_npu`` are small packages in a folder of their own.
"""

import functools
import subprocess
import tempfile
from pathlib import Path

from deepinfer_ascend import machine as machine_module
from deepinfer_ascend.doctor import checks
from deepinfer_ascend.jit import toolchain as toolchain_module
from deepinfer_ascend.probe import probe
from deepinfer_ascend.torch_pair import TorchPair
from deepinfer_core.types import HostInfo

HOST = HostInfo(os="linux", machine="aarch64", python="3.11.7")
NODES = ("davinci0", "davinci_manager", "devmm_svm", "hisi_hdc")
LIBRARIES = ("libascendcl.so", "libhccl.so")
DRIVER = "Version=25.5.2\nascendhal_version=7.35.23\ntsfw_version=1.0\npackage_version=25.5.2\n"
HOME = "/usr/local/Ascend/cann"
AUTOLOADING = """
try:
    raise ImportError("libhccl.so: cannot open shared object file: No such file or directory")
except ImportError as exc:
    raise RuntimeError("Failed to load the backend extension: torch_npu. You can disable extension auto-loading with "
                       "TORCH_DEVICE_BACKEND_AUTOLOAD=0.") from exc
"""


@functools.cache
def fake_dcmi(*defines: str) -> bytes:
    """The library, compiled once for each set of definitions."""
    source = Path(__file__).parent / "fake_dcmi.c"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "libdcmi.so"
        subprocess.run(["cc", "-shared", "-fPIC", *defines, "-o", out, source], check=True)
        return out.read_bytes()


class FakeMachine:
    """``report`` is what the probe says of it, ``doctor`` what the checks say, by name.

    :param sourced: whether ``set_env.sh`` was. :param hal: what CANN requires of the driver.
    :param tools: compilers of CANN. :param tilelang: whether that is installed.
    :param import_fails: whether ``import torch`` does. :param used: MiB of the device's 131,072.
    :param container: whether a file says that it is one.
    """

    def __init__(
        self, root, monkeypatch, *, nodes=NODES, driver=True, chip="950PR", used=512, v2=True, fail="", cann="9.2.0",
        sourced=True, hal="7.35.0", libraries=LIBRARIES, pair=("2.13.0+cpu", "2.13.0"), import_fails=False,
        tools=("bisheng", "ld.lld"), tilelang=True, host_compiler=True, container=False, **environ,
    ):  # fmt: skip
        self.root, self.monkeypatch = root, monkeypatch
        for name in nodes:
            self.write(f"dev/{name}", "")
            (root / "dev" / name).chmod(0o660)
        if container:
            self.write(".dockerenv", "")
        if driver:
            self.write("usr/local/Ascend/driver/version.info", DRIVER)
            defines = [f'-DCHIP="{chip}"', f"-DUSED={used}", f'-DFAIL="{fail}"', *(["-DV2"] if v2 else [])]
            self.write("usr/local/Ascend/driver/lib64/driver/libdcmi.so", fake_dcmi(*defines))
        if cann:
            required = f'required_driver_ascendhal_version="{hal}"'
            self.write(f"{HOME[1:]}/aarch64-linux/ascend_toolkit_install.info", f"version={cann}\n")
            self.write(f"{HOME[1:]}/runtime/version.info", f"Version={cann}\n{required}\n")
            self.write(f"{HOME[1:]}/set_env.sh", "")
            for name in libraries:
                self.write(f"{HOME[1:]}/lib64/{name}", "")
            for name in tools:
                self.write(f"{HOME[1:]}/bin/{name}", "")
        set_env = {"ASCEND_HOME_PATH": HOME, "LD_LIBRARY_PATH": f"{HOME}/lib64", "PATH": f"{HOME}/bin:/usr/bin"}
        given = set_env if sourced and cann else {}
        if host_compiler:
            self.write("usr/bin/g++", "")
        monkeypatch.setattr(toolchain_module, "find_spec", lambda name: object() if tilelang else None)
        self.write("python/torch/__init__.py", AUTOLOADING if import_fails else "")
        self.environ = {**given, "PYTHONPATH": str(root / "python"), **environ}
        torch, torch_npu = pair
        found = TorchPair(torch, torch_npu, bool(torch_npu) and environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") != "0")
        monkeypatch.setattr(machine_module, "torch_pair", lambda environ: found)

    def write(self, path, content):
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())

    @property
    def report(self):
        return probe(HOST, self.root, self.environ)

    @property
    def doctor(self):
        return {check.name: check for check in checks(HOST, self.root, self.environ)}
