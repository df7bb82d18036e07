"""Every factory of the distribution, found by importing the modules of ``deepinfer_cuda.tl``."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from deepinfer_cuda import tl
from deepinfer_cuda.jit.factory import Factory


def factories(area: str | None = None) -> list[Factory]:
    """The factories of ``area`` (``attention``), or all, by area and name. Imports tilelang."""
    found = {
        id(value): value
        for module in _modules(area)
        for value in vars(importlib.import_module(module)).values()
        if isinstance(value, Factory)
    }
    chosen = [factory for factory in found.values() if area in (None, factory.area)]
    return sorted(chosen, key=lambda factory: (factory.area, factory.name))


def areas() -> list[str]:
    """Names of the areas: modules and packages of ``tl`` except the shared parts."""
    return sorted(found.name for found in pkgutil.iter_modules(tl.__path__) if found.name != "parts")


def find(module: str, name: str) -> Factory:
    """The factory ``name`` of ``module``, as another process names it."""
    factory: Factory = getattr(importlib.import_module(module), name)
    return factory


def _modules(area: str | None) -> Iterator[str]:
    for found in pkgutil.walk_packages(tl.__path__, f"{tl.__name__}."):
        name = found.name.removeprefix(f"{tl.__name__}.").split(".")[0]
        if name != "parts" and area in (None, name):
            yield found.name
