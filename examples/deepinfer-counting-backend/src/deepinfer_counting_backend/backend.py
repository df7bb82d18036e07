"""The backend: a wrapper around each op that ``cpu`` has."""

from __future__ import annotations

from deepinfer_core.interfaces import Backend, build_backend, cpu_backend

from deepinfer_counting_backend.counts import OpCount, counted
from deepinfer_counting_backend.report import asked_file, write_report


def create(name: str, device: str | None) -> Backend:
    """The backend called ``name``. What is not given here, memory and capabilities too, comes from ``cpu``.

    Ops that call each other inside ``cpu`` do so directly: what is counted is what model and engine ask for.
    """
    cpu = cpu_backend(device)
    counts = {op: OpCount(cpu.plan[op]) for op in cpu.ops}

    def close() -> None:
        try:
            file = asked_file()
            if file is not None:
                write_report(file, name, counts)
        finally:
            cpu.close()

    ops = {op: counted(call, counts[op]) for op, call in cpu.ops.items()}
    return build_backend(name, ops, defaults=cpu, close=close)
