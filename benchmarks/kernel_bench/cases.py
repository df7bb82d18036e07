"""A case: one op at one size, ours and what else could do it.

Each area has a module with ``cases(rows)``, a list of :class:`Case`; ``AREAS`` names them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence

from attrs import field, frozen

from kernel_bench.harness import Call

AREAS = ("store", "attn", "index", "meta", "dense", "mhc", "engram", "moe", "sample")
Maker = Callable[[int], Call]
"""Makes the call of input set number i. Inputs are made when it is called, on the device, from a seed and i."""


@frozen
class Case:
    """``bytes`` counts each input and each output once, as stored; ``flop`` two for each multiply-add.

    :ivar op: Op id, or a name for a fused group of them.
    :ivar variant: What is special: widths, formats.
    :ivar rows: Tokens, entries or sequences: what the size is counted in.
    :ivar make: Ours.
    :ivar others: Alternatives by name, made alike.
    :ivar target: Share of the floor that is aimed at; None: no aim.
    """

    op: str
    variant: str
    rows: int
    bytes: float
    make: Maker
    flop: float = 0.0
    others: Mapping[str, Maker] = field(factory=dict)
    target: float | None = None


def load(areas: Sequence[str], rows: Sequence[int] | None) -> list[Case]:
    """The cases of ``areas`` at ``rows``, or at each area's own sizes."""
    modules = [importlib.import_module(f"kernel_bench.{area}") for area in areas]
    return [case for module in modules for case in module.cases(rows)]
