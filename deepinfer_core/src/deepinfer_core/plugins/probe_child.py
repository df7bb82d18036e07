"""The child's side of a probe: import one plugin and ask it (``spec/plugins.md`` 9)."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Any

import attrs

from deepinfer_core.errors import DeepInferError, PluginLockError
from deepinfer_core.plugins.failure import blame, exception_text
from deepinfer_core.plugins.lock import check_installed
from deepinfer_core.plugins.manager import load_entry_point, new_pluggy_manager, register_checked
from deepinfer_core.plugins.tracing import trace_calls
from deepinfer_core.types import HostInfo, ProbeReport


def probe_locked(group: str, locked: dict[str, Any], trace: bool) -> dict[str, Any]:
    """:func:`probe` of the plugin that the parent found (``lock.as_data``); another one is not imported."""
    try:
        check_installed(locked)
    except PluginLockError as exc:
        return {"phase": "lock", "error": exc.what, "blame": blame(exc)}
    title = f"backend {locked['name']} ({locked['distribution']} {locked['version']})" if trace else ""
    return probe(group, locked["name"], locked["entry"], traced_as=title)


def probe(group: str, name: str, value: str, *, traced_as: str = "") -> dict[str, Any]:
    """``{"report": ...}``, or ``{"phase", "error", "blame"}`` of what the plugin of this entry point raised.

    :param traced_as: What to call the plugin in a line for each hook call; empty: none are written.
    """
    entry = metadata.EntryPoint(name, value, group)
    phase = "import"
    try:
        plugin = load_entry_point(entry)
        phase = "register"
        manager = new_pluggy_manager()
        if traced_as:
            trace_calls(manager, lambda key: traced_as)
        register_checked(manager, plugin, f"backend:{name}")
        phase = "probe"
        if not manager.hook.deepinfer_backend_probe.get_hookimpls():
            return {"phase": "absent", "error": "it has no deepinfer_backend_probe"}
        report = manager.hook.deepinfer_backend_probe(name=name, host=host_info())
    except KeyboardInterrupt:
        raise
    except BaseException as exc:  # also SystemExit, and a panic of a compiled extension
        text = exc.what if isinstance(exc, DeepInferError) else exception_text(exc)
        return {"phase": phase, "error": text, "blame": blame(exc, entry.value)}
    if not isinstance(report, ProbeReport):
        got = "None" if report is None else type(report).__name__
        return {"phase": "return", "error": got}
    return {"report": attrs.asdict(report)}


def host_info() -> HostInfo:
    """The host as a manifest's ``requires`` and a probe see it."""
    import platform

    return HostInfo(os=sys.platform, machine=platform.machine(), python=platform.python_version())
