"""What a manifest may claim (``spec/kernels.md`` 3.2): the names come from ``contracts/schema/``.

A claim is ``feature:NAME``, ``kv:FORMAT`` or ``op:ID`` of an op that a backend may leave out. Required ops are not
claimed, because every backend has them.
"""

from __future__ import annotations

from deepinfer_contracts import CLAIMS, OPS

from deepinfer_core.settings import did_you_mean


def unknown_claim(claim: str) -> str | None:
    """Why ``claim`` is not a claim, or None."""
    if claim in CLAIMS:
        return None
    kind, _, name = claim.partition(":")
    if kind not in ("feature", "kv", "op"):
        return f"unknown claim {claim!r}; a claim begins with feature:, kv: or op:"
    if kind == "op" and name in OPS:
        return f"claim {claim!r} is of a required op, which every backend has"
    return f"unknown claim {claim!r}{did_you_mean(claim, CLAIMS)}"
