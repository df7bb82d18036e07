"""Hook implementations of the cpu backend (``spec/plugins.md`` 7)."""

from __future__ import annotations

from typing import Any

from deepinfer_core import hookimpl
from deepinfer_core.types import HostInfo, ProbeReport


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
