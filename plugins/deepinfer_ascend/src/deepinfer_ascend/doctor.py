"""What ``deepinfer doctor ascend`` looks at beside the device, which the core tells: ten ways in which a set-up breaks.

Creates no device context. ``import torch`` is tried in a process of its own: where torch-npu breaks it, it breaks this
one too.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from deepinfer_ascend import facts
from deepinfer_ascend.jit.toolchain import toolchain
from deepinfer_ascend.machine import Machine
from deepinfer_core.plugins.torch_extensions import users_environment
from deepinfer_core.types import DoctorCheck, HostInfo

_IMPORT_LIMIT_S = 40.0
_ERROR = re.compile(r"[A-Za-z_.]*(Error|Exception): ")


def checks(host: HostInfo, root: Path = Path("/"), environ: Mapping[str, str] | None = None) -> list[DoctorCheck]:
    """One line for each thing that is looked at."""
    environ = users_environment() if environ is None else environ
    machine = Machine.read(root, environ)
    found = [*machine.checks()]
    if machine.cann.folder is not None:
        found.append(facts.kernel_check(toolchain(environ, root)))
    if machine.pair.torch:
        found.append(facts.autoload_check(machine.pair, machine.cann, import_error(environ)))
    if machine.devices:
        found.append(facts.memory_check(machine.visible or machine.devices))
    return found


def import_error(environ: Mapping[str, str]) -> str:
    """What ``import torch`` says where it fails, and the error that this one came from; empty where it does not."""
    command = [sys.executable, "-c", "import torch"]
    try:
        done = subprocess.run(
            command, env=dict(environ), capture_output=True, text=True, check=False, timeout=_IMPORT_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return f"no end within {_IMPORT_LIMIT_S:.0f} s"
    if done.returncode == 0:
        return ""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    if not lines:
        return f"exit status {done.returncode}"
    first = next(filter(_ERROR.match, lines), lines[-1])
    return lines[-1] if first == lines[-1] else f"{lines[-1]} (from {first})"
