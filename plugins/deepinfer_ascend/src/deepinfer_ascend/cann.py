"""CANN, the vendor's toolkit, by its files and by what its ``set_env.sh`` puts into the environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

from deepinfer_ascend.info_files import read_info, release

LOWEST = (9, 2)
"""Oldest release that the kernels are written for."""
USUAL = ("usr/local/Ascend/cann", "usr/local/Ascend/ascend-toolkit/latest")
LIBRARIES = ("libascendcl.so", "libhccl.so")
"""What torch-npu links: the runtime, and collective communication."""


@frozen
class Cann:
    """:ivar folder: of the installation; None: there is none.
    :ivar version: ``9.2.0``; empty where no file says it.
    :ivar is_sourced: whether the environment is that of its ``set_env.sh``.
    :ivar lost: the variable, and its folder, where that is not there."""

    folder: Path | None = None
    version: str = ""
    is_sourced: bool = False
    lost: str = ""

    @property
    def is_new_enough(self) -> bool:
        return release(self.version) >= LOWEST

    @property
    def set_env(self) -> Path:
        """The script to source: beside the versions where the installation has it there."""
        folder = self.folder or Path("/", USUAL[0])
        beside = folder.parent / "set_env.sh"
        return beside if beside.is_file() and not (folder / "set_env.sh").is_file() else folder / "set_env.sh"


def cann(root: Path, environ: Mapping[str, str]) -> Cann:
    """The one of ``ASCEND_HOME_PATH`` (or ``ASCEND_TOOLKIT_HOME``), else what lies where installers put it."""
    for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        if environ.get(name):
            folder = root / environ[name].lstrip("/")
            lost = f"{name}={environ[name]}"
            return Cann(folder, _version(folder), True) if folder.is_dir() else Cann(lost=lost)
    for place in USUAL:
        if (root / place).is_dir():
            return Cann(root / place, _version(root / place))
    return Cann()


def missing_libraries(root: Path, environ: Mapping[str, str]) -> list[str]:
    """Those of ``LIBRARIES`` that are in no folder of ``LD_LIBRARY_PATH``, nor in one that the loader's files name."""
    places = environ.get("LD_LIBRARY_PATH", "").split(":")
    for listed in sorted((root / "etc/ld.so.conf.d").glob("*.conf")):
        places += listed.read_text(errors="replace").split()
    folders = [root / place.lstrip("/") for place in places if place]
    return [name for name in LIBRARIES if not any((folder / name).exists() for folder in folders)]


def _version(folder: Path) -> str:
    for path in (*sorted(folder.glob("*-linux/ascend_toolkit_install.info")), folder / "runtime/version.info"):
        found = read_info(path).get("version", "")
        if release(found):
            return found
    return ""
