"""``cpu``, ``cuda`` and ``ascend`` in one venv, chosen by flag: none imports another's libraries, and a torch-npu that
cannot be imported, which torch itself tries where it is installed, harms none of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

BACKENDS = ("ascend", "cpu", "cuda")
VENDORS = ("torch", "torch_npu", "acl", "tilelang", "deep_gemm", "flash_mla", "deepinfer_cuda", "deepinfer_ascend")
PROMPT = ("--temperature", "0", "--max-tokens", "6", "import os")
NPU_ENTRY = "[torch.backends]\ntorch_npu = torch_npu:_autoload\n"
NPU_BROKEN = 'raise ImportError("libhccl.so: cannot open shared object file: No such file or directory")\n'


def is_installed(name: str) -> bool:
    try:
        return bool(distribution(name))
    except PackageNotFoundError:
        return False


pytestmark = pytest.mark.skipif(
    not all(is_installed(f"deepinfer-{name}") for name in BACKENDS) or is_installed("torch-npu"),
    reason="needs deepinfer-cpu, -cuda and -ascend in one venv, without torch-npu",
)


@pytest.fixture(scope="module")
def broken_npu(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that has a torch-npu of the right version, and no CANN."""
    folder = tmp_path_factory.mktemp("npu")
    info = folder / "torch_npu-2.13.0.dist-info"
    for path, text in (
        (folder / "torch_npu" / "__init__.py", NPU_BROKEN),
        (info / "METADATA", "Metadata-Version: 2.1\nName: torch-npu\nVersion: 2.13.0\n"),
        (info / "entry_points.txt", NPU_ENTRY),
    ):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("DEEPINFER_", "TORCH_DEVICE"))}
    return inherited | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}


def run(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *["-O"] * sys.flags.optimize, *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=110)


def deepinfer(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(environ, "-m", "deepinfer_core.cli", *arguments)


def test_all_three_are_listed_and_nothing_is_imported(broken_npu: dict[str, str]) -> None:
    code = (
        "import sys; from deepinfer_core.cli import main; status = main(['plugins', '--json']); "
        f"sys.stderr.write(' '.join(sorted(set({VENDORS!r}) & set(sys.modules)))); sys.exit(status)"
    )
    done = run(broken_npu, "-c", code)
    assert (done.returncode, done.stderr) == (0, "")
    listed = {p["name"]: p["state"] for p in json.loads(done.stdout)["plugins"] if p["kind"] == "backend"}
    assert listed == dict.fromkeys(BACKENDS, "found")


def test_cpu_and_the_emulated_ascend_give_the_same_text(broken_npu: dict[str, str]) -> None:
    plain = deepinfer(broken_npu, "generate", "--backend", "cpu", *PROMPT)
    assert (plain.returncode, plain.stderr) == (0, "backend: cpu (chosen by --backend)\n")
    emulated = deepinfer(broken_npu, "generate", "--backend", "ascend", "--emulate", *PROMPT)
    assert emulated.returncode == 0
    assert emulated.stderr.startswith("backend: ascend (chosen by --backend; EMULATED on the processor")
    assert emulated.stdout == plain.stdout != ""


@pytest.mark.skipif(bool(list(Path("/dev").glob("nvidia[0-9]*"))), reason="this machine has a GPU")
@pytest.mark.parametrize("backend", ["cuda", "ascend"])
def test_a_backend_without_its_device_refuses(broken_npu: dict[str, str], backend: str) -> None:
    if backend == "ascend" and list(Path("/dev").glob("davinci[0-9]*")):
        pytest.skip("this machine has an NPU")
    done = deepinfer(broken_npu, "generate", "--backend", backend, *PROMPT)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(f"deepinfer: E_BACKEND_UNAVAILABLE: backend {backend} (deepinfer-{backend} 0.1.0)")


def test_the_doctor_of_ascend_tells_it(broken_npu: dict[str, str]) -> None:
    done = deepinfer(broken_npu, "doctor", "ascend", "--json")
    assert done.returncode == 1
    found = {(c["area"], c["check"]): c for c in json.loads(done.stdout)["checks"]}
    told = found["backend:ascend", "import torch"]
    assert told["status"] == "problem"
    assert "Failed to load the backend extension: torch_npu" in told["detail"]


def test_a_user_who_wants_extensions_of_torch_has_them(broken_npu: dict[str, str]) -> None:
    """And this is what the others would meet."""
    done = deepinfer(broken_npu | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}, "generate", "--backend", "cpu", *PROMPT)
    assert done.returncode == 3
    assert "Failed to load the backend extension: torch_npu" in done.stderr
