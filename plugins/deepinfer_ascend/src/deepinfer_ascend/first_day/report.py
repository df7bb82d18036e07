"""The file to send back: what was found on which machine with which versions. Written anew after every stage, so that a
machine that falls over leaves what was known before."""

from __future__ import annotations

import datetime
import json
import os
import platform
import shutil
import subprocess
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import attrs

from deepinfer_ascend.first_day.running import Result
from deepinfer_ascend.machine import Machine
from deepinfer_core.whole_file import write_whole

PACKAGES = (
    "torch", "torch-npu", "tilelang", "tile-kernels", "apache-tvm-ffi", "numpy", "deep-gemm", "deep-ep", "flash-mla",
    "deep-select",
)  # fmt: skip
VARIABLES = (
    "ASCEND_",
    "HCCL_",
    "TORCH_",
    "TASK_QUEUE",
    "PYTORCH_NPU",
    "TILELANG_",
    "DEEPINFER_",
    "CUDA_VISIBLE",
    "OMP_",
)
"""Beginnings of names of variables that the report has; and LD_LIBRARY_PATH."""


def opening(emulated: bool, root: Path = Path("/")) -> dict[str, Any]:
    """The head of a report: the machine and its versions. Imports nothing of torch."""
    machine = Machine.read(root, os.environ)
    return {
        "report": "first day of backend ascend",
        "schema": 1,
        "emulated": emulated,
        "began": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "host": {
            "system": platform.platform(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
        },
        "commit": _first_line("git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"),
        "versions": versions(),
        "driver": {"version": machine.driver.version, **machine.driver.offers},
        "cann": {"version": machine.cann.version, "folder": str(machine.cann.folder or "")},
        "devices": [attrs.asdict(device) for device in machine.devices],
        "devices_error": machine.error,
        "npu_smi": _output("npu-smi", "info"),
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if name == "LD_LIBRARY_PATH" or name.startswith(VARIABLES)
        },
        "stages": [],
    }


def versions() -> dict[str, str]:
    """Of ours, of torch, and of the vendor's, where they are installed."""
    found = {(d.metadata["Name"] or "").lower(): d.version for d in distributions()}
    return {name: found[name] for name in sorted(found) if name in PACKAGES or name.startswith("deepinfer")}


def add(report: dict[str, Any], result: Result, path: Path) -> None:
    """Add a stage, and write the report to ``path``."""
    report["stages"].append(attrs.asdict(result))
    report["summary"] = {status: n for status in ("passed", "failed", "timed out") if (n := _count(report, status))}
    write_whole(path, json.dumps(report, indent=1, default=str) + "\n")


def _count(report: dict[str, Any], status: str) -> int:
    return sum(stage["status"] == status for stage in report["stages"])


def _output(*command: str) -> str:
    """What it prints; empty where it is not there or fails."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _first_line(*command: str) -> str:
    return _output(*command).partition("\n")[0]
