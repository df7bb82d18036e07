"""Whether this process is in a container, and what one is started with so that it has an NPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

MANAGERS = ("davinci_manager", "devmm_svm", "hisi_hdc")
"""Device files beside those of the devices, all of which the runtime opens."""
DEVICES = "start the container with --device /dev/davinci0 " + " ".join(f"--device /dev/{name}" for name in MANAGERS)
_MARKS = (".dockerenv", "run/.containerenv")
"""Files of docker and podman."""
_VARIABLES = ("KUBERNETES_SERVICE_HOST", "container")


def is_container(root: Path, environ: Mapping[str, str]) -> bool:
    """Whether something says so; a container that says nothing is taken for a host."""
    return any((root / mark).exists() for mark in _MARKS) or any(environ.get(name) for name in _VARIABLES)


def mount(folder: Path) -> str:
    """The option that shows a folder of the host."""
    return f"-v {folder}:{folder}:ro"
