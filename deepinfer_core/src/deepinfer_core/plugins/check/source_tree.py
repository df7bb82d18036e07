"""A source tree as a :class:`Subject`: ``pyproject.toml`` and the folders of its packages. Nothing is built."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from deepinfer_core.errors import InvalidInputFile
from deepinfer_core.plugins.check.notes import Note
from deepinfer_core.plugins.check.subject import Entry, FolderFiles, Subject

MAX_BYTES = 1 << 20
_BUILD = "build a wheel (python -m build), and check that"


def source_tree(path: Path) -> Subject:
    """The distribution that ``path/pyproject.toml`` describes. Raises InvalidInputFile where that cannot be read."""
    pyproject = path / "pyproject.toml"
    try:
        with pyproject.open("rb") as stream:
            top = tomllib.loads(stream.read(MAX_BYTES).decode("utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidInputFile(f"{pyproject} cannot be read", reason=str(exc), remedy="correct the file") from exc
    notes: list[Note] = []
    project = _table(top, "project")
    if not project:
        text = "pyproject.toml has no table [project], so that nothing can be known before it is built"
        notes.append(Note("problem", "project", text, f"write one, or {_BUILD}"))
    dynamic = [item for item in project.get("dynamic", []) if isinstance(item, str)]
    for key in ("entry-points", "dependencies"):
        if key in dynamic:
            text = f"{key} are dynamic, so that they cannot be known before it is built"
            notes.append(Note("warning", "project", text, f"write them into [project], or {_BUILD}"))
    entries = tuple(
        Entry(group, name, value)
        for group, table in _table(project, "entry-points").items()
        if isinstance(table, dict)
        for name, value in table.items()
        if isinstance(value, str)
    )
    tops = {entry.value.partition(":")[0].partition(".")[0].strip() for entry in entries}
    version = project.get("version", "")
    return Subject(
        form="source tree",
        path=path,
        name=str(project.get("name", "")),
        version=str(version) if version else "(dynamic version)" if "version" in dynamic else "",
        entries=entries,
        scripts=(*_table(project, "scripts"), *_table(project, "gui-scripts")),
        requires=tuple(item for item in project.get("dependencies", []) if isinstance(item, str)),
        requires_python=str(project.get("requires-python", "")),
        files=FolderFiles({name: folder for name in tops if name and (folder := package_folder(path, name, top))}),
        notes=tuple(notes),
        project=top,
    )


def package_folder(root: Path, package: str, project: Mapping[str, Any]) -> Path | None:
    """Where the top-level package is in a source tree, as build backends look for it."""
    return next((folder / package for folder in _roots(root, project) if (folder / package).is_dir()), None)


def _roots(root: Path, project: Mapping[str, Any]) -> Iterator[Path]:
    tool = _table(project, "tool")
    hatch = _table(_table(_table(_table(tool, "hatch"), "build"), "targets"), "wheel")
    for item in hatch.get("packages", []):
        if isinstance(item, str):
            yield (root / item).parent
    setuptools = _table(tool, "setuptools")
    for item in _table(setuptools, "package-dir").values():
        yield root / str(item)
    where = _table(_table(setuptools, "packages"), "find").get("where", [])
    for item in where if isinstance(where, list) else []:
        yield root / str(item)
    yield from (root / "src", root, root / "python")


def _table(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = table.get(key, {})
    return found if isinstance(found, dict) else {}
