"""The compilers that a kernel needs on a device: ``bisheng``, and the ``ld.lld`` that links code of the chip. Both come
with CANN; TileLang looks for them where this does. A C++ compiler of the host makes the code that launches a kernel."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from attrs import frozen

BISHENG, LINKER = "bisheng", "ld.lld"
HOST = ("g++", "gcc", "clang++", "clang", "c++", "cc")
_SOURCE = "source set_env.sh of CANN, or set BISHENG_HOME to the folder that has bin/bisheng"
_HOMES = ("BISHENG_HOME", "ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")


@frozen
class Toolchain:
    """:ivar bisheng, linker, host: their files; None: not found. :ivar has_tilelang: what calls them is installed."""

    bisheng: Path | None
    linker: Path | None
    host: Path | None
    has_tilelang: bool

    @property
    def problem(self) -> str:
        """Why kernels cannot be compiled; empty where they can."""
        if not self.has_tilelang:
            return "TileLang is not installed"
        wanted = ((BISHENG, self.bisheng), (LINKER, self.linker), ("a C++ compiler", self.host))
        missing = [name for name, path in wanted if path is None]
        return f"{', '.join(missing)} not found" if missing else ""

    @property
    def remedy(self) -> str:
        if not self.has_tilelang:
            return "pip install 'deepinfer-ascend[kernels]'"
        parts = [] if self.bisheng is not None and self.linker is not None else [_SOURCE]
        return "; ".join([*parts, "install g++"] if self.host is None else parts)


def toolchain(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> Toolchain:
    """What is installed below ``root``."""
    path = [root / place.lstrip("/") for place in environ.get("PATH", "").split(os.pathsep) if place]
    homes = {name: root / environ[name].lstrip("/") for name in _HOMES if environ.get(name)}

    def candidates(name: str, variables: tuple[str, ...]) -> Iterator[Path]:
        for variable in variables:
            if variable in homes:
                yield homes[variable] / "bin" / name
        yield from (folder / name for folder in path)

    bisheng = _first(candidates(BISHENG, _HOMES[:1]))
    beside = [] if bisheng is None else [bisheng.with_name(LINKER)]
    linker = _first(iter([*candidates(LINKER, _HOMES), *beside]))
    named = [Path(environ["CXX"])] if environ.get("CXX") else []
    host = _first(iter([*named, *(folder / name for name in HOST for folder in path)]))
    return Toolchain(bisheng, linker, host, find_spec("tilelang") is not None)


def _first(paths: Iterator[Path]) -> Path | None:
    return next((path for path in paths if path.is_file()), None)
