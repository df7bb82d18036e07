"""Where compiled kernels are kept: ``<root>/tilelang-<version>/cuda-<version>/<arch>``.

TileLang's own key covers the program, its own version, the target and the options, not the compiler's version.
"""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from deepinfer_cuda.jit.toolkit import toolkit_version

VARIABLE = "DEEPINFER_CUDA_CACHE"


def cache_root() -> Path:
    """``$DEEPINFER_CUDA_CACHE``, or ``deepinfer/cuda`` in the user's cache folder."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(os.path.expanduser(given))
    import platformdirs

    return Path(platformdirs.user_cache_dir("deepinfer")) / "cuda"


def cache_folder(arch: str) -> Path:
    """The folder of kernels for ``arch`` that this installation makes and can use.

    Without a compiler: that of the newest compiler whose kernels are here, so that a carried cache is found.
    """
    folder = cache_root() / f"tilelang-{tilelang_version()}"
    found = toolkit_version()
    if not found:
        carried = sorted(folder.glob(f"cuda-*/{arch}"), key=lambda path: _numbers(path.parent.name))
        if carried:
            return carried[-1]
    return folder / f"cuda-{found or 'none'}" / arch


def tilelang_version() -> str:
    """Of the distribution; ``none`` where it is not installed."""
    try:
        return version("tilelang")
    except PackageNotFoundError:
        return "none"


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.removeprefix("cuda-").split(".") if part.isdigit())
