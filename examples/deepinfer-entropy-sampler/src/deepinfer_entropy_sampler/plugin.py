"""The hook of the sampler ``entropy``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from deepinfer_core import hookimpl
from deepinfer_core.errors import InvalidParameter

if TYPE_CHECKING:
    from deepinfer_core.interfaces import RowSampler

DEFAULT_MAX_BITS = 3.0


@hookimpl
def deepinfer_sampler_create(params: Mapping[str, Any]) -> RowSampler:
    """``max_bits``: most entropy of a row, in bits. Raises InvalidParameter for anything else, which ends the request."""
    from deepinfer_entropy_sampler.entropy import EntropyCap

    unknown = sorted(params.keys() - {"max_bits"})
    if unknown:
        raise InvalidParameter(f"unknown parameter {unknown[0]!r}", remedy="there is: max_bits")
    return EntropyCap(params.get("max_bits", DEFAULT_MAX_BITS))
