"""What a manifest may claim (``spec/kernels.md`` 3.2): the names come from ``contracts/schema/``.

A claim is ``feature:NAME``, ``kv:FORMAT`` or ``op:ID`` of an op that a backend may leave out. Required ops are not
claimed, because every backend has them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from deepinfer_core.errors import ContractError
from deepinfer_core.settings import did_you_mean


def unknown_claim(claim: str) -> str | None:
    """Why ``claim`` is not a claim, or None."""
    claims, ops = _names()
    if claim in claims:
        return None
    kind, _, name = claim.partition(":")
    if kind not in ("feature", "kv", "op"):
        return f"unknown claim {claim!r}; a claim begins with feature:, kv: or op:"
    if kind == "op" and name in ops:
        return f"claim {claim!r} is of a required op, which every backend has"
    return f"unknown claim {claim!r}{did_you_mean(claim, claims)}"


def contracts_missing(reason: str) -> ContractError:
    """The error of a core without its contracts."""
    return ContractError(
        "deepinfer-contracts is not installed", reason=reason, remedy="pip install deepinfer-contracts"
    )


@functools.cache
def _names() -> tuple[frozenset[str], Mapping[str, Any]]:
    """Claims and ops, from the generated module of names alone.

    Importing the package ``deepinfer_contracts`` brings numpy, 140 ms that listing the plugins has no use for. The
    generated ``_ops.py`` needs nothing but attrs.
    """
    package = find_spec("deepinfer_contracts")
    folders = package.submodule_search_locations if package is not None else None
    spec = spec_from_file_location("deepinfer_contracts._ops", Path(folders[0]) / "_ops.py") if folders else None
    if spec is None or spec.loader is None:
        raise contracts_missing("the names that a manifest may claim come from it")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.CLAIMS, module.OPS
