"""What is examined: the same questions to a source tree, a wheel, and the files of an installed distribution."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from configparser import ConfigParser
from configparser import Error as ConfigError
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from attrs import field, frozen

from deepinfer_core.errors import InvalidInputFile
from deepinfer_core.plugins.check.notes import Note

MAX_MEMBER_BYTES = 4 << 20


class Files(Protocol):
    """The files of the distribution's packages, by their path below the import path: ``deepinfer_acme/plugin.py``."""

    def read(self, path: str) -> bytes | None:
        """At most ``MAX_MEMBER_BYTES`` of a file; None: there is none."""

    def below(self, folder: str) -> list[str]:
        """Paths of all files in a folder and its folders."""


@frozen
class Entry:
    """One entry point."""

    group: str
    name: str
    value: str


@frozen
class Subject:
    """A distribution as data."""

    form: str
    """``source tree``, ``wheel`` or ``installed``."""
    path: Path
    name: str
    version: str
    entries: tuple[Entry, ...]
    scripts: tuple[str, ...]
    requires: tuple[str, ...]
    requires_python: str
    files: Files
    notes: tuple[Note, ...] = ()
    """What was wrong with the reading."""
    project: Mapping[str, Any] = field(factory=dict)
    """``pyproject.toml`` of a source tree; empty for the others."""


def read_subject(path: Path) -> Subject:
    """The distribution at ``path``: a folder with ``pyproject.toml``, a ``.whl``, or a ``.dist-info`` folder.

    :raises InvalidInputFile: it is none of these, or cannot be read.
    """
    # Those of os.path: the methods of Path raise where a folder above may not be entered.
    if path.suffix == ".whl" and os.path.isfile(path):
        return _wheel(path)
    if path.name.endswith(".dist-info") and os.path.isdir(path):
        return _installed(path)
    if path.name == "pyproject.toml" and os.path.isfile(path):
        path = path.parent
    if os.path.isfile(path / "pyproject.toml"):
        from deepinfer_core.plugins.check.source_tree import source_tree

        return source_tree(path)
    found = "there is no pyproject.toml in it" if os.path.exists(path) else "no such file or folder"
    if os.path.isfile(path):
        found = "it is a file of another kind"
    raise InvalidInputFile(
        f"{path} is no plugin",
        reason=found,
        remedy="give a folder with pyproject.toml, a wheel (.whl), or the .dist-info folder of an installed one",
        details={"path": str(path)},
    )


@frozen
class FolderFiles:
    """Files below folders that stand for entries of the import path."""

    packages: Mapping[str, Path]
    """Top package -> its folder."""

    def read(self, path: str) -> bytes | None:
        top, _, rest = path.partition("/")
        folder = self.packages.get(top)
        if folder is None or not rest or not (folder / rest).is_file():
            return None
        with (folder / rest).open("rb") as stream:
            return stream.read(MAX_MEMBER_BYTES)

    def below(self, folder: str) -> list[str]:
        top, _, rest = folder.partition("/")
        if top not in self.packages:
            return []
        home = self.packages[top]
        return [
            f"{top}/{found.relative_to(home).as_posix()}"
            for found in sorted((home / rest).rglob("*"))
            if found.is_file() and "__pycache__" not in found.parts
        ]


@frozen
class _WheelFiles:
    archive: zipfile.ZipFile
    names: Sequence[str]

    def read(self, path: str) -> bytes | None:
        if path not in self.names:
            return None
        with self.archive.open(path) as stream:
            return stream.read(MAX_MEMBER_BYTES)

    def below(self, folder: str) -> list[str]:
        return sorted(name for name in self.names if name.startswith(folder + "/") and not name.endswith("/"))


def _wheel(path: Path) -> Subject:
    try:
        archive = zipfile.ZipFile(path)
        names = archive.namelist()
        files = _WheelFiles(archive, names)
        [info] = {name.partition("/")[0] for name in names if name.partition("/")[0].endswith(".dist-info")}
        about = (files.read(f"{info}/METADATA") or b"").decode("utf-8", "replace")
        entries = (files.read(f"{info}/entry_points.txt") or b"").decode("utf-8", "replace")
    except (zipfile.BadZipFile, OSError, ValueError, KeyError) as exc:
        raise InvalidInputFile(
            f"{path} is no wheel",
            reason=f"{type(exc).__name__}: {exc}",
            remedy="build it again: python -m build",
        ) from exc
    return _from_metadata("wheel", path, about, entries, files)


def _installed(path: Path) -> Subject:
    dist = metadata.PathDistribution(path)
    about, entries = dist.read_text("METADATA") or "", dist.read_text("entry_points.txt") or ""
    tops = {value.partition(":")[0].partition(".")[0] for value in _values(entries)}
    from deepinfer_core.plugins.discovery import package_folders

    packages: dict[str, Path] = {}
    for top in tops:
        beside = path.parent / top
        folders = [beside] if beside.is_dir() else package_folders(top)  # of an editable installation
        if folders:
            packages[top] = folders[0]
    return _from_metadata("installed", path, about, entries, FolderFiles(packages))


def _values(text: str) -> list[str]:
    return [entry.value for entry in _entry_points(text)]


def _entry_points(text: str) -> list[Entry]:
    parser = ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(text)
    except ConfigError:
        return []
    return [Entry(group, name, value) for group in parser.sections() for name, value in parser.items(group)]


def _from_metadata(form: str, path: Path, about: str, entries: str, files: Files) -> Subject:
    head = HeaderParser().parsestr(about)
    found = _entry_points(entries)
    return Subject(
        form=form,
        path=path,
        name=head.get("Name", "") or PurePosixPath(path.name).name.partition("-")[0],
        version=head.get("Version", ""),
        entries=tuple(entry for entry in found if not entry.group.endswith("_scripts")),
        scripts=tuple(e.name for e in found if e.group in ("console_scripts", "gui_scripts")),
        requires=tuple(head.get_all("Requires-Dist") or ()),
        requires_python=head.get("Requires-Python", "") or "",
        files=files,
    )
