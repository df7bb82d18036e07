"""Whether a module came from the distribution that claims it, or from a folder that hides it on the import path."""

from __future__ import annotations

import json
import os
import sys
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from deepinfer_core.doctor.findings import Finding


def module_origin(
    area: str, distribution: str, dist: metadata.Distribution | None, file: str | None, *, needed: bool
) -> Finding:
    """The file of a module; a note if it lies outside of what the distribution installed.

    :param dist: The metadata of ``distribution``; None: it has none.
    """
    data = {"file": file, "distribution": distribution}
    if file is None:
        return Finding(area, "file", "note", "the module has no file", needed=needed, data=data)
    home = installed_home(dist) if dist is not None else None
    path = Path(file).resolve()
    if home is None or path.is_relative_to(home):
        return Finding(area, "file", "ok", file, needed=needed, data=data)
    return Finding(
        area,
        "file",
        "note",
        f"{file} hides the installed {distribution} in {home}",
        reason=_why(path),
        remedy="take that entry off the import path, unless it is meant to be there",
        needed=needed,
        data={**data, "installed": str(home)},
    )


def installed_home(dist: metadata.Distribution) -> Path | None:
    """The folder below which the modules of a distribution lie: its project when editable, else where it is installed.

    None where the metadata does not say.
    """
    try:
        record = json.loads(dist.read_text("direct_url.json") or "{}")
        url = record.get("url", "")
        if record.get("dir_info", {}).get("editable") is True and url.startswith("file:"):
            return Path(url2pathname(urlsplit(url).path)).resolve()
        return Path(str(dist.locate_file(""))).resolve()
    except (OSError, ValueError, AttributeError):
        return None


def distribution_of(name: str) -> metadata.Distribution | None:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


def _python_path() -> list[str]:
    return [str(Path(part).resolve()) for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]


def _why(path: Path) -> str:
    """Which entry of the import path the file came from."""
    holders = [entry for entry in sys.path if entry and path.is_relative_to(Path(entry).resolve())]
    if not holders:
        return "it was found by an import hook, outside of the import path"
    entry = max(holders, key=len)
    if Path(entry).resolve() == Path.cwd().resolve():
        return f"the working directory {entry} comes first on the import path"
    if str(Path(entry).resolve()) in _python_path():
        return f"PYTHONPATH puts {entry} first on the import path"
    return f"{entry} comes first on the import path"
