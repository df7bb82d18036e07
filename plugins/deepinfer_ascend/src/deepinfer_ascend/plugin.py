"""Hook implementations of the ascend backend (``spec/plugins.md`` 7). torch is imported inside the hooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepinfer_core import hookimpl
from deepinfer_core.types import DoctorCheck, HostInfo, ProbeReport


@hookimpl
def deepinfer_backend_probe(name: str, host: HostInfo) -> ProbeReport:
    """Runs in a child process; reads files and asks the driver's library, and creates no device context."""
    from deepinfer_ascend.probe import probe

    return probe(host)


@hookimpl
def deepinfer_backend_create(name: str, device: str | None, config: Any) -> Any:
    """The backend on one device; torch and torch_npu are imported here and not before."""
    from deepinfer_ascend import backend

    return backend.create(device, config)


@hookimpl
def deepinfer_doctor_checks(host: HostInfo) -> Sequence[DoctorCheck]:
    """Runs in a child process."""
    from deepinfer_ascend.doctor import checks

    return checks(host)
