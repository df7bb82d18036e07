"""The hooks of the backend ``counting``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from deepinfer_core import hookimpl
from deepinfer_core.types import CommandSpec, DoctorCheck, HostInfo, ProbeReport

if TYPE_CHECKING:
    from deepinfer_core.interfaces import Backend


@hookimpl
def deepinfer_backend_probe(host: HostInfo) -> ProbeReport:
    """The processor is always there."""
    return ProbeReport(present=True, usable=True, devices=("cpu",), arch="cpu", driver=host.machine)


@hookimpl
def deepinfer_backend_create(name: str, device: str | None) -> Backend:
    """The ops of ``cpu``, each in a wrapper that counts."""
    from deepinfer_counting_backend.backend import create

    return create(name, device)


@hookimpl
def deepinfer_cli_commands() -> Sequence[CommandSpec]:
    """``deepinfer deepinfer-counting-backend.op-calls FILE``."""
    target = "deepinfer_counting_backend.command:op_calls"
    return [CommandSpec("op-calls", target, "Show the calls that backend counting wrote to a file.")]


@hookimpl
def deepinfer_doctor_checks() -> Sequence[DoctorCheck]:
    """Whether the report can be written, where one is asked for."""
    from deepinfer_counting_backend.report import VARIABLE, asked_file

    file = asked_file()
    if file is None:
        return [DoctorCheck("report", "note", f"none is written: {VARIABLE} is not set")]
    if not file.parent.is_dir():
        return [
            DoctorCheck("report", "problem", f"{file.parent} is no folder", remedy=f"make it, or change {VARIABLE}")
        ]
    return [DoctorCheck("report", "ok", f"written to {file} when an engine closes")]
