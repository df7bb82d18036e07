"""The child's side of a probe: import one plugin and ask it (``spec/plugins.md`` 9)."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Any

import attrs

from deepinfer_core.errors import DeepInferError
from deepinfer_core.plugins.failure import blame, exception_text
from deepinfer_core.plugins.lock import check_installed
from deepinfer_core.plugins.manager import load_entry_point, new_pluggy_manager, register_checked
from deepinfer_core.types import HostInfo, ProbeReport


def probe(group: str, locked: dict[str, Any]) -> dict[str, Any]:
    """``{"report": ...}``, or ``{"phase", "error", "blame"}`` of what the plugin of this entry point raised.

    ``locked`` is the plugin as the parent found it; another one is not imported.
    """
    name = locked["name"]
    entry = metadata.EntryPoint(name, locked["entry"], group)
    phase = "lock"
    try:
        check_installed(locked)
        phase = "import"
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
