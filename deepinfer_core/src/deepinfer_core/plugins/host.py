"""Whether this host has what a manifest says that a plugin needs. Nothing is imported."""

from __future__ import annotations

import glob
import platform
import sys

from deepinfer_core.plugins.discovery import package_folders
from deepinfer_core.plugins.manifest import Requires


def unmet_requires(requires: Requires) -> str:
    """Which static condition of a manifest does not hold on this host; empty when all do."""
    if requires.os and not any(sys.platform.startswith(name) for name in requires.os):
        return f"needs {' or '.join(requires.os)}, this is {sys.platform}"
    if requires.machine and platform.machine() not in requires.machine:
        return f"needs a {' or '.join(requires.machine)} processor, this is {platform.machine()}"
    if requires.any_path and not any(glob.glob(pattern) for pattern in requires.any_path):
        return f"no {' or '.join(requires.any_path)} here"
    absent = [name for name in requires.modules if not package_folders(name.partition(".")[0])]
    return f"needs the Python package{'s' if len(absent) > 1 else ''} {', '.join(absent)}" if absent else ""
