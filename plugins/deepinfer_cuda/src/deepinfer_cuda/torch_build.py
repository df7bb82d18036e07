"""Which CUDA the installed torch is built for, without importing it: that takes seconds and loads CUDA's libraries."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from attrs import frozen

_CUDA = re.compile(r"^cuda\b[^=\n]*=\s*['\"](\d+)\.(\d+)['\"]", re.MULTILINE)


@frozen
class TorchBuild:
    """:ivar version: ``2.11.0+cu130``; empty: torch is not installed.
    :ivar cuda: ``(13, 0)``; None: built without CUDA."""

    version: str = ""
    cuda: tuple[int, int] | None = None


def torch_build() -> TorchBuild:
    """Of the torch that ``import torch`` would give: ``torch/version.py`` is text that its build wrote."""
    try:
        installed = version("torch")
    except PackageNotFoundError:
        return TorchBuild()
    spec = find_spec("torch")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    for folder in folders:
        try:
            text = (Path(folder) / "version.py").read_text()
        except OSError:
            continue
        found = _CUDA.search(text)
        return TorchBuild(installed, (int(found[1]), int(found[2])) if found else None)
    return TorchBuild(installed)
