"""Lowered kernels in place of plain ops, under emulation and where they are asked for: ``DEEPINFER_ASCEND_LOWERED=1``.

Each is executed on the processor for the arguments that it takes (:mod:`deepinfer_ascend.jit.hosted`); others go to the
op as it is. Off by default: it needs TileLang and g++, and the first call of each size lowers and compiles.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Mapping

from deepinfer_ascend.jit.serving.parts import Op, Served

VARIABLE = "DEEPINFER_ASCEND_LOWERED"
MODULES = ("rows", "caches", "compress", "indices", "feed", "streams", "sampling", "indexer", "experts", "engram")
"""Of this package: each has a table ``SERVED`` of op ids and calls."""


def asked(environ: Mapping[str, str] = os.environ) -> bool:
    return environ.get(VARIABLE, "0") not in ("", "0")


def serve(ops: Mapping[str, Op]) -> dict[str, Op]:
    """Those of ``ops`` that a lowered kernel serves, with the kernel in front."""
    table = dict(ops)
    served: dict[str, Op] = {}
    for name in MODULES:
        for op, call in importlib.import_module(f"{__name__}.{name}").SERVED.items():
            served[op] = functools.wraps(ops[op])(functools.partial(call, Served(ops[op], table)))
    table |= served
    return served
