"""Python, our distributions and what they require: from metadata alone. Nothing is imported."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement

from deepinfer_core import API_VERSION
from deepinfer_core import __file__ as core_file
from deepinfer_core.doctor.findings import Finding
from deepinfer_core.doctor.origins import distribution_of, module_origin
from deepinfer_core.plugins.grammars import INSTALL as GRAMMAR_INSTALL

CORE = "deepinfer-core"
USES = {
    "deepinfer-cpu": "the conformance kit",
    "deepseek-recipe": "chats",
    "jinja2": "new-plugin and reports of the conformance kit",
    "pytest": "the conformance kit",
    "scipy": "deepinfer audit",
    "xgrammar": "structured output",
}
"""What an optional library is for, in words."""


def core_findings() -> Iterator[Finding]:
    """This Python, and the distributions that every command needs."""
    version = platform.python_version()
    yield Finding(
        "core",
        "python",
        "ok",
        f"{version} on {sys.platform} {platform.machine()}, {sys.executable}",
        data={"version": version, "os": sys.platform, "machine": platform.machine(), "executable": sys.executable},
    )
    installed = _version(CORE)
    api = f"{API_VERSION[0]}.{API_VERSION[1]}"
    if installed is None:
        yield Finding(
            "core",
            CORE,
            "note",
            f"plugin API {api}, not installed: the package is used from its folder",
            reason="it has no metadata here, so that no plugin of it is found by it",
            remedy=f"pip install {CORE}",
        )
    else:
        yield Finding("core", CORE, "ok", f"{installed}, plugin API {api}", data={"version": installed, "api": api})
    yield module_origin("core", CORE, distribution_of(CORE), core_file, needed=True)
    yield from requirement_findings("core", CORE, needed=True)


def requirement_findings(area: str, distribution: str, *, needed: bool) -> Iterator[Finding]:
    """One line for all that is required and fits; one for each that does not; one for each extra library."""
    try:
        declared = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return
    fitting: dict[str, str] = {}
    for text in declared:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as exc:
            yield Finding(area, "requires", "note", f"{distribution} declares {text!r}", reason=str(exc), needed=needed)
            continue
        extra = extra_of(requirement)
        if extra is None and requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = _version(requirement.name)
        if version is not None and requirement.specifier.contains(version, prereleases=True):
            if extra is None:
                fitting[requirement.name] = version
            else:
                yield _extra(area, distribution, requirement, extra, version, needed)
        elif extra is not None:
            yield _extra(area, distribution, requirement, extra, version, needed)
        else:
            yield _unmet(area, distribution, requirement, version, needed)
    if fitting:
        listed = ", ".join(f"{name} {version}" for name, version in sorted(fitting.items()))
        yield Finding(area, "requires", "ok", listed, needed=needed, data={"installed": fitting})


def extra_of(requirement: Requirement) -> str | None:
    """The extra that brings a requirement; None for one that is always there."""
    if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
        return None
    for name in sorted(_extra_names(str(requirement.marker))):
        if requirement.marker.evaluate({"extra": name}):
            return name
    return None


def _extra_names(marker: str) -> set[str]:
    """Names after ``extra ==`` in the text of a marker."""
    parts = marker.replace("'", '"').split("extra == ")
    return {part.split('"')[1] for part in parts[1:] if part.startswith('"')}


def _unmet(area: str, distribution: str, requirement: Requirement, version: str | None, needed: bool) -> Finding:
    wanted = f"{requirement.name}{requirement.specifier}"
    found = "is not installed" if version is None else f"{version} is installed"
    what = f"{requirement.name} {found}"
    what += "" if version is None else f", and {distribution} needs {requirement.specifier}"
    return Finding(
        area,
        "requires",
        "problem",
        what,
        reason=f"{distribution} requires {wanted}",
        remedy=f"pip install '{wanted}'",
        needed=needed,
        data={"requirement": str(requirement), "installed": version},
    )


def _extra(
    area: str, distribution: str, requirement: Requirement, extra: str, version: str | None, needed: bool
) -> Finding:
    purpose = USES.get(requirement.name, f"what extra {extra} is for")
    data = {"extra": extra, "requirement": str(requirement), "installed": version}
    name = f"extra {extra}"
    if version is None:
        return Finding(
            area,
            name,
            "note",
            f"{requirement.name} is not installed: {purpose} will be refused",
            remedy=GRAMMAR_INSTALL if requirement.name == "xgrammar" else f"pip install '{distribution}[{extra}]'",
            needed=False,
            data=data,
        )
    if not requirement.specifier.contains(version, prereleases=True):
        return Finding(
            area,
            name,
            "problem",
            f"{requirement.name} {version} is installed, and {distribution} needs {requirement.specifier}",
            reason=f"it is for {purpose}",
            remedy=f"pip install '{requirement.name}{requirement.specifier}'",
            needed=False,
            data=data,
        )
    return Finding(area, name, "ok", f"{requirement.name} {version}, for {purpose}", needed=needed, data=data)


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
