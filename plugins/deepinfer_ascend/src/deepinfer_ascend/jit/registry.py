"""Every kernel factory, by name, with the sizes that the survey and the tests make."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

MODULES = ("norm", "swiglu", "rotary", "cast", "store", "mask", "mix", "indices", "gather", "dense")
"""Of ``tl``: importing one imports TileLang."""
SIZES: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "rms_rows": ({"width": 64}, {"width": 512}, {"width": 5120}),
    "swiglu_rows": ({"inner": 64}, {"inner": 2304}),
    "rotary_rows": ({"width": 64, "turned": 16}, {"width": 512, "turned": 64}),
    "cast_rows": ({"width": 256}, {"width": 5120}),
    "store_v41": ({"width": 64}, {"width": 512}),
    "load_v41": ({"width": 64}, {"width": 512}),
    "mask_rows": ({"width": 1536}, {"width": 129_280}),
    "mix_coefficients": ({"streams": 4, "iters": 20},),
    "ring_indices": ({"width": 32}, {"width": 128}),
    "run_indices": ({"width": 512},),
    "gather_rows": ({"width": 256}, {"width": 5120}),
    "dense_rows": ({"outputs": 128, "inputs": 256}, {"outputs": 1280, "inputs": 5120}),
}
"""The shipped checkpoint's and the released model's."""
DOES_NOT_LOWER: Mapping[str, str] = {}
"""Kernel -> why; one that begins to lower leaves the list."""
_factories: dict[str, Callable[..., Any]] = {}


def kernel(factory: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator of a factory in ``tl``."""
    _factories[factory.__name__] = factory
    return factory


@functools.cache
def factories() -> Mapping[str, Callable[..., Any]]:
    """Name -> factory, of every module. Imports TileLang."""
    for name in MODULES:
        importlib.import_module(f"deepinfer_ascend.tl.{name}")
    return dict(_factories)


def tasks() -> list[tuple[str, Mapping[str, Any]]]:
    """Every kernel in every size."""
    return [(name, sizes) for name, listed in SIZES.items() for sizes in listed]
