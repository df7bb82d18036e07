"""Whether the build of a source tree would take a file along, as far as the build backend's settings say.

A manifest that is not in the wheel is the commonest fault of a first release: setuptools leaves out every file that is
no Python, and hatchling what version control ignores. Nothing is built; ``plugins check`` of the wheel is the proof.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from deepinfer_core.plugins.check.notes import Note, Status

CHECK = "packing"
_TAKES_ALL = ("flit_core", "flit_core.buildapi", "pdm.backend", "poetry.core.masonry.api", "uv_build")
_WHEEL = "build a wheel, and check that: deepinfer plugins check dist/*.whl"


def packing_note(root: Path, project: Mapping[str, Any], file: Path) -> Note:
    """What the build does with ``file`` of a package below ``root``."""
    backend = str(_at(project, "build-system").get("build-backend", "setuptools.build_meta:__legacy__"))
    relative = file.relative_to(root).as_posix()
    package = file.parent.name
    if backend.startswith("hatchling"):
        return _hatchling(root, project, relative, package)
    if backend.startswith("setuptools"):
        return _setuptools(root, project, relative, package, file.name)
    if backend in _TAKES_ALL:
        return _note("ok", f"{backend} takes all files of {package}, {file.name} with them")
    return _note("warning", f"{backend} is not known here, so it cannot be told whether it takes {relative}", _WHEEL)


def _hatchling(root: Path, project: Mapping[str, Any], relative: str, package: str) -> Note:
    build = _at(project, "tool", "hatch", "build")
    wheel = _at(build, "targets", "wheel")
    keep = f"add to [tool.hatch.build.targets.wheel]: artifacts = [{relative!r}]".replace("'", '"')
    packages = _texts(wheel, "packages") or _texts(build, "packages")
    if packages and not any(Path(item).name == package for item in packages):
        return _note("problem", f"packages of hatchling are {', '.join(packages)}, and {package} is not one", keep)
    artifacts = _texts(wheel, "artifacts") + _texts(build, "artifacts")
    if any(matches(pattern, relative) for pattern in artifacts):
        return _note("ok", f"hatchling takes {relative}: it is one of artifacts")
    for owner in (wheel, build):
        include = _texts(owner, "include") or _texts(owner, "only-include")
        if include and not any(matches(pattern, relative) for pattern in include):
            return _note("problem", f"include of hatchling leaves {relative} out: {', '.join(include)}", keep)
        excluding = [pattern for pattern in _texts(owner, "exclude") if matches(pattern, relative)]
        if excluding:
            return _note("problem", f"exclude of hatchling leaves {relative} out: {', '.join(excluding)}", keep)
    ignored = _ignored_by(root, relative)
    if ignored:
        return _note("problem", f".gitignore has {ignored!r}, so hatchling leaves {relative} out", keep)
    return _note("ok", f"hatchling takes all files of {package}, {relative} with them")


def _setuptools(root: Path, project: Mapping[str, Any], relative: str, package: str, name: str) -> Note:
    settings = _at(project, "tool", "setuptools")
    remedy = f'add to pyproject.toml: [tool.setuptools.package-data] {package} = ["{name}"]'
    excluded = _at(settings, "exclude-package-data")
    if any(fnmatchcase(name, item) for key in (package, "*", "") for item in _texts(excluded, key)):
        return _note("problem", f"exclude-package-data of setuptools leaves {name} out", remedy)
    data = _at(settings, "package-data")
    if any(fnmatchcase(name, item) for key in (package, "*", "") for item in _texts(data, key)):
        return _note("ok", f"setuptools takes {relative}: it is in package-data")
    requires = _texts(_at(project, "build-system"), "requires")
    if any(item.replace("_", "-").startswith("setuptools-scm") for item in requires):
        text = f"setuptools-scm takes {relative} if it is committed to version control, and not otherwise"
        return _note("warning", text, remedy)
    if settings.get("include-package-data", True) is not False and _in_manifest_in(root, relative):
        return _note("ok", f"setuptools takes {relative}: MANIFEST.in names it")
    return _note("problem", f"setuptools leaves out files that are no Python, and with them {relative}", remedy)


def _in_manifest_in(root: Path, relative: str) -> bool:
    path = root / "MANIFEST.in"
    if not path.is_file():
        return False
    for line in path.read_text("utf-8", "replace").splitlines():
        words = line.split()
        if not words:
            continue
        folder, name = relative.rpartition("/")[0], relative.rpartition("/")[2]
        match words[0]:
            case "include" if any(fnmatchcase(relative, item) for item in words[1:]):
                return True
            case "global-include" if any(fnmatchcase(name, item) for item in words[1:]):
                return True
            case "graft" if len(words) > 1 and f"{folder}/".startswith(words[1].rstrip("/") + "/"):
                return True
            case "recursive-include" if len(words) > 2 and f"{folder}/".startswith(words[1].rstrip("/") + "/"):
                if any(fnmatchcase(name, item) for item in words[2:]):
                    return True
    return False


def _ignored_by(root: Path, relative: str) -> str:
    """The last line of ``.gitignore`` that decides about the file, if it leaves it out."""
    path = root / ".gitignore"
    if not path.is_file():
        return ""
    decided = ""
    for raw in path.read_text("utf-8", "replace").splitlines():
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if matches(line.removeprefix("!"), relative):
            decided = "" if line.startswith("!") else line
    return decided


def matches(pattern: str, path: str) -> bool:
    """Whether a pattern of the form of ``.gitignore`` takes the file ``path`` or a folder that it is in."""
    anchored = "/" in pattern.rstrip("/")
    wanted = pattern.strip("/").replace("**/", "*").replace("/**", "/*")
    parts = path.split("/")
    whole = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
    if pattern.endswith("/"):
        whole, parts = whole[:-1], parts[:-1]
    return any(fnmatchcase(item, wanted) for item in (whole if anchored else parts))


def _note(status: Status, detail: str, remedy: str = "") -> Note:
    return Note(status, CHECK, detail, remedy)


def _at(table: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    for key in keys:
        inner = table.get(key, {})
        table = inner if isinstance(inner, dict) else {}
    return table


def _texts(table: Mapping[str, Any], key: str) -> list[str]:
    value = table.get(key, [])
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
