"""Hook implementations of the cpu backend (``spec/plugins.md`` 7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepinfer_core import hookimpl
from deepinfer_core.types import DoctorCheck, HostInfo, ProbeReport


@hookimpl
def deepinfer_backend_probe(name: str, host: HostInfo) -> ProbeReport:
    """Runs in a child process."""
    from deepinfer_cpu.probe import probe

    return probe(host)


@hookimpl
def deepinfer_backend_create(name: str, device: str | None, config: Any) -> Any:
    """The backend; torch is imported here and not before."""
    from deepinfer_cpu import backend

    return backend.create(device, config)


@hookimpl
def deepinfer_doctor_checks(host: HostInfo) -> Sequence[DoctorCheck]:
    """Runs in a child process; imports torch."""
    from deepinfer_cpu.doctor import checks

    return checks()
