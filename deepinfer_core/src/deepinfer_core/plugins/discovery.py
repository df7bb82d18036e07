"""Step 1: read the entry points of the installed distributions once in a process. Nothing is imported.

``importlib.metadata`` is asked once: a scan for each group costs as much as one of all groups (``spec/plugins.md`` 3).
"""

from __future__ import annotations

import errno
import functools
import json
import logging
import os
import stat
from collections.abc import Iterable, Iterator
from importlib import metadata
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attrs import frozen

LOG = logging.getLogger("deepinfer.plugins")
ENTRY_POINTS = "entry_points.txt"
MANIFEST_GROUP = "deepinfer.manifest"
KIND_OF_GROUP = {
    "deepinfer.backends": "backend",
    "deepinfer.models": "model",
    "deepinfer.samplers": "sampler",
    "deepinfer.grammars": "grammar",
    "deepinfer.logits_filters": "logits_filter",
    "deepinfer.scorers": "scorer",
    "deepinfer.extensions": "extension",
}


@frozen
class Found:
    """One entry point of one distribution."""

    kind: str
    name: str
    entry: metadata.EntryPoint
    distribution: str
    version: str
    editable: bool

    @property
    def top_package(self) -> str:
        return self.entry.value.partition(":")[0].partition(".")[0].strip()


@functools.cache
def installed_entry_points() -> tuple[metadata.EntryPoint, ...]:
    """Our entry points of the environment, distributions de-duplicated. Read once in a process."""
    groups = (MANIFEST_GROUP, *KIND_OF_GROUP)
    scanned = scanned_entry_points()
    if scanned is None:
        return tuple(entry for entry in _one_by_one() if entry.group in groups)
    return tuple(entry for group in groups for entry in scanned.select(group=group))


@functools.cache
def scanned_entry_points() -> Any:
    """All entry points; None where one damaged entry_points.txt, of whatever package, stops the whole scan.

    Any is ``metadata.EntryPoints | None``: before Python 3.12 the declared interface is another one.
    """
    try:
        return metadata.entry_points()
    except Exception as exc:
        LOG.debug("scanning one by one, because the scan failed: %s", exc)
        return None


def _one_by_one() -> Iterator[metadata.EntryPoint]:
    """The same, leaving out distributions that cannot be read."""
    seen: set[str] = set()
    for dist in metadata.distributions():
        name, _ = _name_and_version(dist)
        if name not in seen and not _parse_problem(dist):
            seen.add(name)  # the first one on the path is the one that imports find
            yield from dist.entry_points


@functools.cache
def unread_distributions() -> tuple[str, ...]:
    """A warning for each distribution whose entry points cannot be read: its plugins, if it has any, are missing.

    ``importlib.metadata`` takes a file that it must not read for one that is not there.
    """
    warnings = []
    damaged = scanned_entry_points() is None
    for dist in metadata.distributions():
        path = getattr(dist, "_path", None)
        reason = _unreadable(path / ENTRY_POINTS) if isinstance(path, Path) else ""
        reason = reason or (_parse_problem(dist) if damaged else "")
        if reason:
            name, version = _name_and_version(dist)
            warnings.append(
                f"W_METADATA: the plugins of {name} {version}, if it has any, are left out: {ENTRY_POINTS} in "
                f"{path or 'an unknown place'} cannot be read: {reason}; pip install --force-reinstall {name}, or make "
                "the file readable"
            )
    return tuple(warnings)


def _parse_problem(dist: metadata.Distribution) -> str:
    try:
        list(dist.entry_points)
    except Exception as exc:
        return str(exc) or type(exc).__name__
    return ""


def _unreadable(path: Path) -> str:
    """Why a file that is there cannot be read; empty where it can, or where there is none."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return "it is no file"
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as err:
        return err.strerror or str(err)
    return "" if os.access(path, os.R_OK) else os.strerror(errno.EACCES)


def discover(entries: Iterable[metadata.EntryPoint] | None = None) -> tuple[list[Found], dict[str, list[str]]]:
    """The plugins found, and the manifest entry values of each distribution.

    :param entries: Entry points to use in place of the installed ones.
    :returns: Plugins sorted by kind, name and distribution, so that no result depends on the order of installation;
        and distribution name -> values in the group ``deepinfer.manifest``.
    """
    found: list[Found] = []
    manifests: dict[str, list[str]] = {}
    about: dict[int, tuple[str, str, bool]] = {}
    for entry in installed_entry_points() if entries is None else entries:
        if entry.group != MANIFEST_GROUP and entry.group not in KIND_OF_GROUP:
            continue
        dist = entry.dist
        if dist is None:
            continue  # made by hand, and not part of any distribution
        if id(dist) not in about:
            about[id(dist)] = (*_name_and_version(dist), is_editable(dist))
        name, version, editable = about[id(dist)]
        if entry.group == MANIFEST_GROUP:
            manifests.setdefault(name, []).append(entry.value)
        else:
            found.append(Found(KIND_OF_GROUP[entry.group], entry.name, entry, name, version, editable))
    found.sort(key=lambda item: (item.kind, item.name, item.distribution, item.entry.value))
    return found, manifests


def _name_and_version(dist: metadata.Distribution) -> tuple[str, str]:
    """Also of a half-removed distribution, whose METADATA is gone: then as its folder is called."""
    try:
        known = dist.metadata
        # `get` is not part of the declared interface before Python 3.12, and indexing a missing key is deprecated.
        name, version = (known[key] if key in known else "" for key in ("Name", "Version"))  # noqa: SIM401
    except Exception:  # what is raised for a missing file differs between Python versions
        name, version = "", ""
    folder = str(getattr(dist, "_path", "unknown"))
    stem, _, in_folder = Path(folder).stem.partition("-")
    return name or stem, version or in_folder or "unknown"


def is_editable(dist: metadata.Distribution) -> bool:
    """Whether the distribution is installed in place (PEP 610): then its files need not be those of its version."""
    info = _direct_url(dist).get("dir_info")
    return isinstance(info, dict) and info.get("editable") is True


def editable_folder(dist: metadata.Distribution) -> Path | None:
    """The folder that the distribution was installed in place from; None where it was not."""
    url = _direct_url(dist).get("url")
    if not is_editable(dist) or not isinstance(url, str) or not url.startswith("file:"):
        return None
    from urllib.parse import urlsplit
    from urllib.request import url2pathname  # 20 ms, only for a message

    return Path(url2pathname(urlsplit(url).path))


def _direct_url(dist: metadata.Distribution) -> dict[str, object]:
    try:
        record = json.loads(dist.read_text("direct_url.json") or "{}")
    except (OSError, ValueError, RecursionError):  # of ValueError also bytes that are no UTF-8
        return {}
    return record if isinstance(record, dict) else {}


def package_folders(top_package: str) -> list[Path]:
    """The folders of a top-level package, without importing it. Empty when there is none, or when it is a module.

    A dotted name is refused by the caller: ``find_spec("a.b")`` would import ``a``.
    """
    try:
        spec = find_spec(top_package)
    except Exception:
        # A module in sys.modules without a spec (``__main__``), or a finder of an editable installation that fails;
        # the path finder may still know the folder.
        spec = PathFinder.find_spec(top_package) if top_package else None
    if spec is None or spec.submodule_search_locations is None:
        return []
    return [Path(location) for location in spec.submodule_search_locations]
