"""The child side of a probe: import one plugin, ask it, and write one JSON line to the pipe (``spec/plugins.md`` 9).

Standard output and error belong to the plugin and its driver libraries; the answer has a pipe of its own.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import metadata
from typing import Any

import attrs

from deepinfer_core.errors import DeepInferError
from deepinfer_core.plugins.failure import blame, exception_text
from deepinfer_core.plugins.manager import load_entry_point, new_pluggy_manager, register_checked
from deepinfer_core.types import HostInfo, ProbeReport


def main(fd: int, group: str, name: str, value: str) -> None:
    """Probe the backend ``name`` and report to file descriptor ``fd``."""
    answer = probe(metadata.EntryPoint(name, value, group), name)
    with os.fdopen(fd, "w", encoding="utf-8") as pipe:
        pipe.write(json.dumps(answer) + "\n")


def probe(entry: metadata.EntryPoint, name: str) -> dict[str, Any]:
    """``{"report": ...}``, or ``{"phase", "error", "blame"}`` of what the plugin raised."""
    phase = "import"
    try:
        plugin = load_entry_point(entry)
        phase = "register"
        manager = new_pluggy_manager()
        register_checked(manager, plugin, f"backend:{name}")
        phase = "probe"
        if not manager.hook.deepinfer_backend_probe.get_hookimpls():
            return {"phase": "absent", "error": "it has no deepinfer_backend_probe"}
        report = manager.hook.deepinfer_backend_probe(name=name, host=host_info())
    except KeyboardInterrupt:
        raise
    except BaseException as exc:  # also SystemExit, and a panic of a compiled extension
        text = exc.what if isinstance(exc, DeepInferError) else exception_text(exc)
        return {"phase": phase, "error": text, "blame": blame(exc)}
    if not isinstance(report, ProbeReport):
        got = "None" if report is None else type(report).__name__
        return {"phase": "return", "error": got}
    return {"report": attrs.asdict(report)}


def host_info() -> HostInfo:
    """The host as a manifest's ``requires`` and a probe see it."""
    import platform

    return HostInfo(os=sys.platform, machine=platform.machine(), python=platform.python_version())
