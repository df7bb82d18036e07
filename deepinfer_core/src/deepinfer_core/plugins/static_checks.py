"""The checks of a plugin that need no import, in the order of ``spec/plugins.md`` 4."""

from __future__ import annotations

from importlib.machinery import PathFinder
from pathlib import Path

from deepinfer_core import API_VERSION
from deepinfer_core.config import PluginSettings
from deepinfer_core.errors import ApiVersionError, ContractError, DeepInferError, ManifestError, PluginError
from deepinfer_core.plugins.discovery import editable_folder
from deepinfer_core.plugins.manifest import Manifest
from deepinfer_core.plugins.names import FIRST_PARTY_DISTRIBUTIONS, name_problem
from deepinfer_core.plugins.record import PluginRecord, State


def check_static(record: PluginRecord, manifest: Manifest | ManifestError, settings: PluginSettings) -> None:
    """Put ``record`` into the end state that its description or the settings give it, if any."""
    disabled = _disabled_by(record, settings)
    if disabled:
        record.end(
            "disabled",
            "configuration",
            PluginError(
                f"{record.title} is disabled",
                reason=f"it is {disabled}",
                remedy="change that setting to use it",
            ),
            disabled,
        )
        return
    wrong = (_not_there(record) or manifest) if isinstance(manifest, ManifestError) else None
    problem = name_problem(record.kind, record.name, record.distribution, settings.prefer) or wrong
    if problem is not None:
        record.end("invalid", "manifest", _of_plugin(record, problem), problem.what)
        return
    if record.manifest is None:
        return
    incompatible = _api_problem(record, record.manifest) or _contract_problem(record, record.manifest)
    if incompatible is not None:
        state: State = "invalid" if isinstance(incompatible, ManifestError) else "incompatible"
        phase, note = (
            ("manifest", f"api {record.manifest.api!r} is no version range") if state == "invalid" else ("contract", "")
        )
        if isinstance(incompatible, ApiVersionError):
            phase, note = "api", f"needs API {record.manifest.api}; core has {core_api()}"
        record.end(state, phase, incompatible, note)


def _disabled_by(record: PluginRecord, settings: PluginSettings) -> str:
    names = {record.name, record.key, record.distribution}
    if names & set(settings.disable):
        return "named in plugins.disable (--no-plugin)"
    if settings.allow is None or record.distribution in FIRST_PARTY_DISTRIBUTIONS or names & set(settings.allow):
        return ""
    return "not named in plugins.allow (DEEPINFER_PLUGINS)"


def _of_plugin(record: PluginRecord, problem: ManifestError) -> ManifestError:
    """The problem, told as one of this plugin."""
    home = _hidden_home(record)
    if home is not None and not problem.remedy:
        return ManifestError(
            f"{record.title} has an invalid description: {problem.what}",
            reason=f"{record.folder} hides the installed {record.distribution} in {home}",
            remedy="take that folder off the import path (PYTHONPATH, or the working directory)",
        )
    project = editable_folder(record.entry.dist) if record.entry.dist is not None else None
    if project is not None and "entry_points" in problem.details:
        return ManifestError(
            f"{record.title} has an invalid description: {problem.what}",
            reason="entry points are those of the day it was installed in place; its files are those of today",
            remedy=f"install it again: pip install -e {project}",
        )
    return ManifestError(
        f"{record.title} has an invalid description: {problem.what}",
        reason=problem.reason or f"nothing of {record.distribution} is imported unless its description is sound",
        remedy=problem.remedy or record.remedy_for(f"ask the authors of {record.distribution}, or pip uninstall it"),
    )


def _hidden_home(record: PluginRecord) -> Path | None:
    """Where the distribution is installed, if its package was found somewhere else."""
    dist = record.entry.dist
    if dist is None or record.folder is None:
        return None
    home = (editable_folder(dist) or Path(str(dist.locate_file("")))).resolve()
    return None if record.folder.resolve().is_relative_to(home) else home


def _not_there(record: PluginRecord) -> ManifestError | None:
    """That the distribution is registered, and its package is gone: nobody's authors are to blame for that."""
    if record.folder is not None:
        return None
    folder = editable_folder(record.entry.dist) if record.entry.dist is not None else None
    if folder is not None and not folder.is_dir():
        return ManifestError(
            f"the folder {folder} is gone",
            reason=f"{record.distribution} was installed in place from there (pip install -e)",
            remedy=f"pip install it from where it is now, or pip uninstall {record.distribution}",
        )
    package = record.entry.value.partition(":")[0].partition(".")[0].strip()
    if not package:
        return ManifestError(
            f"its entry point is {record.entry.value!r}, which names no module",
            reason=f"{record.entry.name} in group {record.entry.group} of its metadata",
            remedy=f"ask the authors of {record.distribution}, or pip uninstall it",
        )
    if PathFinder.find_spec(package) is not None:
        return None  # a module, which is told as such
    return ManifestError(
        f"its package {package} is not there",
        reason="only its metadata is left, or a file that the package needs is missing",
        remedy=f"pip install --force-reinstall {record.distribution}, or pip uninstall it",
    )


def _api_problem(record: PluginRecord, manifest: Manifest) -> DeepInferError | None:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    core = core_api()
    try:
        accepted = SpecifierSet(manifest.api)
    except InvalidSpecifier:
        return _of_plugin(record, ManifestError(f"{manifest.path.name}: api {manifest.api!r} is no version range"))
    if accepted.contains(core, prereleases=True):
        return None
    return ApiVersionError(
        f"plugin {record.name} ({record.distribution} {record.version}) needs plugin API {manifest.api}",
        reason=f"this core provides {core}",
        remedy=f"pip install -U {record.distribution} deepinfer-core",
        details={"plugin": record.key, "needs": manifest.api, "core": core},
    )


def core_api() -> str:
    """``1.0``: the plugin API of this core."""
    return f"{API_VERSION[0]}.{API_VERSION[1]}"


def _contract_problem(record: PluginRecord, manifest: Manifest) -> DeepInferError | None:
    if not manifest.contracts:
        return None
    from deepinfer_core.plugins.contract_check import contract_difference  # 40 ms, only for compiled plugins

    for name, table in sorted(manifest.contracts.items()):
        difference = contract_difference(name, table.fields, table.chain, table.chains)
        if difference:
            return ContractError(
                f"{name} of {record.distribution} {record.version} differs: {difference[0]}",
                reason="its compiled code was built for another definition of the record",
                remedy=f"pip install -U {record.distribution} deepinfer-core",
                details={"plugin": record.key, "contract": name, "field": difference[1]},
            )
    return None
