"""The kit's pytest plugin: its options exist, and its rules hold, only when the kit is on the command line.

Loaded through the entry point group ``pytest11``, or with ``-p deepinfer_core.conformance.pytest_plugin`` where plugins
are not loaded by themselves. Every run of pytest in an environment with deepinfer-core imports this module: it imports
nothing else until the kit is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

_PACKAGE = "deepinfer_core.conformance"
_NAME = "deepinfer_conformance_run"


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser, args: Sequence[str]) -> None:
    """Add the options. Before any conftest is read: one that reads them would otherwise find none."""
    named = [*args, *(getattr(early_config.option, "file_or_dir", None) or ())]
    if not any(_names_kit(str(argument)) for argument in named):
        return
    from deepinfer_core.conformance.options import add_options
    from deepinfer_core.conformance.run import Kit
    from deepinfer_core.plugins.torch_extensions import VARIABLE

    os.environ.setdefault(VARIABLE, "0")  # modules of the kit import torch
    add_options(parser)
    if not early_config.pluginmanager.has_plugin(_NAME):
        early_config.pluginmanager.register(Kit(early_config), _NAME)


def _names_kit(argument: str) -> bool:
    """Whether an argument is the kit, a part of it, or a path into it. This module is none: it is the value of -p."""
    target = argument.partition("::")[0].partition("[")[0]
    if target == __name__:
        return False
    if target == _PACKAGE or target.startswith(_PACKAGE + "."):
        return True
    if target.startswith("-") or os.sep not in target:
        return False
    folder, path = Path(__file__).resolve().parent, Path(target).resolve()
    return path.exists() and (path == folder or folder in path.parents)
