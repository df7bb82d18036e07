"""Turn whatever a plugin raised into a typed error that names the plugin, the phase, and the line to blame."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepinfer_core.errors import ContractError, DeepInferError, PluginError

if TYPE_CHECKING:
    from deepinfer_core.plugins.record import PluginRecord

MAX_TEXT = 500


def plugin_failure(record: PluginRecord, phase: str, exc: BaseException) -> DeepInferError:
    """The error for ``exc``, raised by the plugin's code in ``phase``.

    A typed error of the plugin passes unchanged: it already says what failed and what to do.
    """
    if isinstance(exc, DeepInferError):
        return exc
    if getattr(exc, "code", None) == ContractError.code:  # ContractMismatch of deepinfer_contracts, which has no core
        return contract_error(exc, record.title, {"plugin": record.key, "distribution": record.distribution})
    return PluginError(
        f"{record.title} failed in {phase}: {exception_text(exc)}",
        reason=f"raised at {blame(exc, record.entry.value)}",
        remedy=_import_remedy(record, exc)
        or record.remedy_for(
            f"reinstall or update {record.distribution}, or leave it out with --no-plugin {record.name}"
        ),
        details={"plugin": record.key, "distribution": record.distribution, "phase": phase},
    )


def contract_error(mismatch: Any, owner: str = "", details: Mapping[str, object] | None = None) -> ContractError:
    """A ``ContractMismatch`` of ``deepinfer_contracts.verify`` as our error, with record and first differing field."""
    return ContractError(
        f"{owner}: {mismatch.what}" if owner else mismatch.what,
        reason=mismatch.reason,
        remedy=mismatch.remedy,
        details={**(details or {}), "contract": mismatch.contract, "field": mismatch.field},
    )


def _import_remedy(record: PluginRecord, exc: BaseException) -> str:
    """What to install when the plugin lacks a module of somebody else; empty for any other failure."""
    if not isinstance(exc, ImportError) or not exc.name:
        return ""
    module = exc.name.partition(".")[0]
    if module == record.entry.value.partition(":")[0].partition(".")[0]:
        return ""
    again = f"pip install --force-reinstall {record.distribution}, which brings what it depends on"
    needed = _required_distribution(record.distribution, module)
    if needed is None:  # a module's name is not its distribution's: one that nobody declared may be a stranger's
        return f"{again}, or leave it out with --no-plugin {record.name}"
    if isinstance(exc, ModuleNotFoundError):
        return f"pip install {needed}"
    return f"pip install --force-reinstall {needed}, or {again}"


def _required_distribution(distribution: str, module: str) -> str | None:
    """The distribution that provides ``module``, among those that the plugin or the core declares to need."""
    from importlib import metadata

    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    for owner in (distribution, "deepinfer-core"):
        try:
            declared = metadata.requires(owner) or []
        except metadata.PackageNotFoundError:
            continue
        for text in declared:
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue
            if canonicalize_name(requirement.name) == canonicalize_name(module):
                return requirement.name
    return None


def exception_text(exc: BaseException) -> str:
    """``OSError: libacme.so: cannot open``, on one line and of bounded length."""
    text = " ".join(str(exc).split())
    name = type(exc).__name__
    line = f"{name}: {text}" if text else name
    return line if len(line) <= MAX_TEXT else line[: MAX_TEXT - 3] + "..."


def blame(exc: BaseException, entry_value: str = "") -> str:
    """``package/module.py:14`` of the line to blame, or of the one that does not parse.

    :param entry_value: Entry point value of a plugin: its innermost frame is preferred to those of libraries that it
        called. Empty: the innermost frame.
    """
    if isinstance(exc, SyntaxError) and exc.filename:
        return f"{short_path(exc.filename)}:{exc.lineno}"
    frames = traceback.extract_tb(exc.__traceback__)
    if not frames:
        return "an unknown place"
    package = entry_value.partition(":")[0].partition(".")[0].strip()
    own = [
        frame for frame in frames if package and short_path(frame.filename).startswith((f"{package}/", f"{package}.py"))
    ]
    if package and not own and isinstance(exc, ImportError) and exc.name:
        return f"the import of {exc.name}"  # by the core: the module that an entry or a command names is not there
    last = (own or frames)[-1]
    return f"{short_path(last.filename)}:{last.lineno}"


def short_path(filename: str) -> str:
    """The path relative to the import path entry that holds it (the longest one), else as it is."""
    path = Path(filename)
    holders = [entry for entry in sys.path if entry and path.is_relative_to(entry)]
    return path.relative_to(max(holders, key=len)).as_posix() if holders else filename
