"""What a new plugin is written for: the core that is installed here. Nothing about it is typed into a template."""

from __future__ import annotations

from importlib import metadata

from attrs import frozen
from packaging.version import Version

from deepinfer_core import API_VERSION
from deepinfer_core.backend import op_table


@frozen
class Facts:
    """Versions and ops, as the templates name them."""

    api: str
    """``>=1.0,<2``: plugin API versions, for the manifest."""
    core: str
    """``>=0.1,<0.2``: releases of ``deepinfer-core`` and the plugins released with it, for pyproject.toml."""
    required_ops: tuple[str, ...]
    """Ops that every backend must have, sorted. Only a backend's templates need them, and they cost numpy."""


def read_facts(kind: str) -> Facts:
    """The facts for a plugin of ``kind``."""
    ops = tuple(sorted(op for op, required in op_table().items() if required)) if kind == "backend" else ()
    return Facts(api_range(*API_VERSION), release_range(metadata.version("deepinfer-core")), ops)


def api_range(major: int, minor: int) -> str:
    """Versions of the plugin API that a plugin written for this one works with (``spec/plugins.md`` 6)."""
    return f">={major}.{minor},<{major + 1}" if major else f">=0.{minor},<0.{minor + 1}"


def release_range(version: str) -> str:
    """Releases that may be expected to fit: those up to the next one that may break, which is a minor one below 1.0."""
    release = Version(version)
    if release.major:
        return f">={release.major}.{release.minor},<{release.major + 1}"
    return f">=0.{release.minor},<0.{release.minor + 1}"
