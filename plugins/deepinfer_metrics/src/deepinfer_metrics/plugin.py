"""The hooks of the extension ``metrics``. Libraries are imported when something of them is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING

from deepinfer_core import hookimpl

if TYPE_CHECKING:
    from deepinfer_core.config import EngineConfig
    from deepinfer_core.interfaces import StepObserver
    from deepinfer_core.types import DoctorCheck

LIBRARIES = (
    ("metrics", "prometheus-client", "--metrics-port", "pip install prometheus-client"),
    ("traces", "opentelemetry-sdk", "--trace-file", "pip install 'deepinfer-metrics[traces]'"),
)


@hookimpl
def deepinfer_step_observer(config: EngineConfig) -> StepObserver | None:
    """The observer of what ``[observe]`` asks for.

    :raises ConfigError: the address cannot be had, or is not to be had without ``metrics_public``.
    :raises LibraryMissing: a library is not installed.
    :raises CommandUsageError: a file cannot be written.
    """
    if not config.observe.is_on:
        return None
    from deepinfer_metrics.observer import observer_of

    return observer_of(config.observe, emulated=config.emulate)


@hookimpl
def deepinfer_doctor_checks() -> Sequence[DoctorCheck]:
    """Which of its libraries are there."""
    from deepinfer_core.types import DoctorCheck

    checks = []
    for name, library, option, remedy in LIBRARIES:
        try:
            checks.append(DoctorCheck(name, "ok", f"{library} {metadata.version(library)}"))
        except metadata.PackageNotFoundError:
            detail = f"{library} is not installed; {option} needs it ({remedy})"
            checks.append(DoctorCheck(name, "note", detail))
    return checks
