"""CUDA text that goes before the kernels."""

from __future__ import annotations

from importlib.resources import files

from deepinfer_cuda.tl.parts.numbers import NUMBERS


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


NARROW = NUMBERS + _text("wide.cuh")
WIDE = _text("entries.cuh") + _text("wide.cuh")
_HOPPER = ("entries.cuh", "wide.cuh", "barriers.cuh", "expand.cuh", "heads.cuh", "tiles.cuh")
CACHED, GATHERED = (
    "".join(map(_text, (*_HOPPER, *names))) for names in (("shares.cuh", "cached.cuh"), ("gathered.cuh",))
)
