"""What runs in the child processes. Each function takes and returns JSON-serialisable values only."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Any

import attrs

from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import DeepInferError, PluginLockError
from deepinfer_core.plugins.failure import blame, exception_text, plugin_failure
from deepinfer_core.plugins.hooks import wrong_return
from deepinfer_core.plugins.lock import check_installed
from deepinfer_core.plugins.manager import PluginManager
from deepinfer_core.plugins.manifest import PluginTable
from deepinfer_core.plugins.probe_child import host_info
from deepinfer_core.plugins.record import PluginRecord
from deepinfer_core.plugins.registry import Registry
from deepinfer_core.types import DoctorCheck

CHECKS_HOOK = "deepinfer_doctor_checks"
HEAVY = ("torch", "torch_npu", "tilelang", "triton")
"""Packages that a plugin imports inside its hooks: they take a second or more."""


def load_plugin(group: str, locked: dict[str, Any], trace: bool) -> dict[str, Any]:
    """``{"file", "hooks", "heavy"}`` of the plugin's module, or ``{"error", "phase"}``."""
    try:
        check_installed(locked)
    except PluginLockError as exc:
        return {"error": _as_record(exc), "phase": "lock"}
    manager, record = _one_plugin(group, locked, trace)
    if not manager.load(record):
        return {"error": _as_record(record.error), "phase": record.phase}
    module = sys.modules.get(record.entry.value.partition(":")[0].strip())
    from deepinfer_core import hookspecs

    known = sorted(hook for hook in vars(hookspecs) if hook.startswith("deepinfer_"))
    hooks = [hook for hook in known if manager.hook(record, hook) is not None]
    heavy = [name for name in HEAVY if name in sys.modules]
    return {"file": getattr(module, "__file__", None), "hooks": hooks, "heavy": heavy}


def plugin_checks(group: str, locked: dict[str, Any], trace: bool) -> dict[str, Any]:
    """``{"checks": [...]}`` of the plugin's own ``deepinfer_doctor_checks``, or ``{"error"}``."""
    try:
        check_installed(locked)
    except PluginLockError as exc:
        return {"error": _as_record(exc), "phase": "lock"}
    manager, record = _one_plugin(group, locked, trace)
    if not manager.load(record):
        return {"error": _as_record(record.error)}
    caller = manager.hook(record, CHECKS_HOOK)
    try:
        with manager.calling(record):
            results = caller(host=host_info()) if caller is not None else []
        checks: list[DoctorCheck] = []
        for result in results:
            if not isinstance(result, list | tuple) or not all(isinstance(item, DoctorCheck) for item in result):
                raise wrong_return(CHECKS_HOOK, record, result, "a sequence of DoctorCheck")
            checks += result
        for check in checks:
            if check.status not in ("ok", "note", "problem"):
                raise wrong_return(CHECKS_HOOK, record, check, "a status of ok, note or problem in each DoctorCheck")
    except KeyboardInterrupt:
        raise
    except BaseException as exc:  # also SystemExit, and a panic of a compiled extension
        return {"error": _as_record(plugin_failure(record, "its doctor checks", exc))}
    return {"checks": [attrs.asdict(check) for check in checks]}


def native_parts() -> dict[str, Any]:
    """``{"contracts": ..., "native": ...}``, each with what was found, or ``{"error"}``."""
    from deepinfer_core.assembly.native_core import load_native

    found: dict[str, Any] = {}
    try:
        from deepinfer_core.records import CONTRACTS

        import deepinfer_contracts  # isort: skip

        found["contracts"] = {
            "version": metadata.version("deepinfer-contracts"),
            "file": deepinfer_contracts.__file__,
            "records": {
                name: {"fields": len(info.fields), "chain": f"{info.layout_hash:016x}"}
                for name, info in sorted(CONTRACTS.items())
            },
        }
    except Exception as exc:
        found["contracts"] = {"error": _of_exception(exc, "pip install --force-reinstall deepinfer-contracts")}
    try:
        load_native()  # compares each compiled record with the installed one
        import deepinfer_native
        from deepinfer_native.library import ffi, lib

        library = sys.modules["deepinfer_native._native"].__file__
        version = ffi.string(lib.di_version()).decode()
        found["native"] = {"version": version, "file": deepinfer_native.__file__, "library": library}
    except Exception as exc:
        found["native"] = {"error": _of_exception(exc, "pip install --force-reinstall deepinfer-native")}
    return found


def chat_library() -> dict[str, Any]:
    """``{"file"}`` of the library for chats, or ``{"error"}`` of its import."""
    from deepinfer_core.chat.recipe import recipe

    try:
        return {"file": recipe().__file__}
    except Exception as exc:
        return {"error": _of_exception(exc, "pip install --force-reinstall 'deepinfer-core[chat]'")}


def examine_model(flags: dict[str, Any], file: str | None, with_environment: bool) -> list[dict[str, Any]]:
    """The findings of :mod:`deepinfer_core.doctor.model_plan`, as the fields of ``Finding``."""
    from deepinfer_core.doctor.model_plan import examine

    config = EngineConfig.resolve(flags, file=file, environ=None if with_environment else {})
    return [attrs.asdict(finding) for finding in examine(config)]


def _one_plugin(group: str, locked: dict[str, Any], trace: bool) -> tuple[PluginManager, PluginRecord]:
    kind, name = locked["kind"], locked["name"]
    record = PluginRecord(
        kind=kind,
        name=name,
        distribution=locked["distribution"],
        version=locked["version"],
        entry=metadata.EntryPoint(name, locked["entry"], group),
        folder=None,
        editable=False,
        table=PluginTable(kind=kind, name=name),
    )
    config = EngineConfig(trace_hooks=trace)
    return PluginManager(Registry([record]), config), record


def _as_record(error: DeepInferError | None) -> dict[str, Any]:
    if error is None:
        return {"code": DeepInferError.code, "message": "it cannot be loaded", "reason": "", "remedy": ""}
    record = error.as_record()
    record.pop("details", None)  # may hold what JSON cannot
    return record


def _of_exception(exc: Exception, remedy: str) -> dict[str, Any]:
    if isinstance(exc, DeepInferError):
        return _as_record(exc)
    reason = f"raised at {blame(exc)}"
    return {"code": DeepInferError.code, "message": exception_text(exc), "reason": reason, "remedy": remedy}
