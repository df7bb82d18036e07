"""An extension that looks at the host."""

from __future__ import annotations

from typing import Any

from deepinfer_core import hookimpl
from deepinfer_core.types import DoctorCheck


@hookimpl
def deepinfer_doctor_checks(host: Any) -> Any:
    return [DoctorCheck("host", "ok", f"{host.os} on {host.machine}")]
