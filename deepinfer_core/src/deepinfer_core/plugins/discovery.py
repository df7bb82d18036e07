"""Step 1: read the entry points of the installed distributions once in a process. Nothing is imported.

``importlib.metadata`` is asked once: a scan for each group costs as much as one of all groups (``spec/plugins.md`` 3).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from importlib import metadata
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from attrs import frozen

MANIFEST_GROUP = "deepinfer.manifest"
KIND_OF_GROUP = {
    "deepinfer.backends": "backend",
    "deepinfer.models": "model",
    "deepinfer.samplers": "sampler",
    "deepinfer.grammars": "grammar",
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
    scanned = metadata.entry_points()
    return tuple(entry for group in (MANIFEST_GROUP, *KIND_OF_GROUP) for entry in scanned.select(group=group))


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
            about[id(dist)] = (dist.metadata["Name"] or "unknown", dist.version, is_editable(dist))
        name, version, editable = about[id(dist)]
        if entry.group == MANIFEST_GROUP:
            manifests.setdefault(name, []).append(entry.value)
        else:
            found.append(Found(KIND_OF_GROUP[entry.group], entry.name, entry, name, version, editable))
    found.sort(key=lambda item: (item.kind, item.name, item.distribution, item.entry.value))
    return found, manifests


def is_editable(dist: metadata.Distribution) -> bool:
    """Whether the distribution is installed in place (PEP 610): then its files need not be those of its version."""
    text = dist.read_text("direct_url.json")
    if text is None:
        return False
    try:
        record = json.loads(text)
    except ValueError:
        return False
    info = record.get("dir_info") if isinstance(record, dict) else None
    return isinstance(info, dict) and info.get("editable") is True


def package_folders(top_package: str) -> list[Path]:
    """The folders of a top-level package, without importing it. Empty when there is none, or when it is a module.

    A dotted name is refused by the caller: ``find_spec("a.b")`` would import ``a``.
    """
    try:
        spec = find_spec(top_package)
    except (ImportError, ValueError):
        # A module in sys.modules without a spec (``__main__``); the path finder still knows the folder.
        spec = PathFinder.find_spec(top_package)
    if spec is None or spec.submodule_search_locations is None:
        return []
    return [Path(location) for location in spec.submodule_search_locations]
