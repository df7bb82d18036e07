"""Compare what a model needs with what a backend claims (before it is created) and with what it has (after).

Once, before weights load; no later code asks which backend it is (``spec/kernels.md`` 3.2).
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

from deepinfer_core.interfaces import Backend
from deepinfer_core.plugins.manifest import PluginTable
from deepinfer_core.types import Capabilities, Requirements


@frozen
class Missing:
    """Requirements that are not met; false when there are none."""

    ops: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    limits: tuple[str, ...] = field(default=())

    def __bool__(self) -> bool:
        return bool(self.ops or self.formats or self.features or self.limits)

    def listed(self) -> list[str]:
        return [
            *(f"op {op}" for op in self.ops),
            *(f"format {name}" for name in self.formats),
            *(f"feature {name}" for name in self.features),
            *self.limits,
        ]

    def claims(self) -> list[str]:
        """Formats and features as a manifest would claim them: ``kv:index_fp4``, ``feature:graphs``."""
        return [
            *(f"kv:{name.removeprefix('kv:')}" for name in self.formats),
            *(f"feature:{name}" for name in self.features),
        ]


def missing_claims(table: PluginTable, requirements: Requirements, arch: str = "") -> Missing:
    """What a manifest does not claim on ``arch``, of what is claimed: cache formats and features.

    Ops and limits are compared with the backend itself, by :func:`missing_capabilities`; required ops are not claimed.
    """
    claims = table.claims_for(arch)
    formats = tuple(sorted(f for f in requirements.formats if f"kv:{f.removeprefix('kv:')}" not in claims))
    features = sorted({_bare(name) for name in requirements.features_required})
    return Missing(formats=formats, features=tuple(f for f in features if f"feature:{f}" not in claims))


def missing_capabilities(backend: Backend, requirements: Requirements) -> Missing:
    """What the created backend lacks: ops, formats, features, and limits that are too small."""
    has = backend.capabilities
    offered = has.kv_formats | has.index_formats
    formats = [name for name in sorted(requirements.formats) if name.removeprefix("kv:") not in offered]
    features = sorted({_bare(name) for name in requirements.features_required} - has.features)
    return Missing(
        ops=tuple(sorted(op for op in requirements.ops if backend.ops.get(op) is None)),
        formats=tuple(formats),
        features=tuple(features),
        limits=_exceeded(requirements.limits, has),
    )


def _exceeded(needed: Mapping[str, int], has: Capabilities) -> tuple[str, ...]:
    """Limits that are too small. What a backend does not state (no entry, 0, or empty) it does not limit."""
    offered = {**has.limits, **({"topk": has.max_topk} if has.max_topk else {})}
    exceeded = [
        f"{name} of {needed[name]} (at most {offered[name]})"
        for name in sorted(needed)
        if name in offered and needed[name] > offered[name]
    ]
    heads = needed.get("heads")
    if heads is not None and has.heads and heads not in has.heads:
        exceeded.append(f"heads of {heads} (offered: {', '.join(map(str, has.heads))})")
    return tuple(exceeded)


def features_met(table: PluginTable, preferred: frozenset[str], arch: str = "") -> int:
    """How many preferred features a manifest claims on ``arch``."""
    claims = table.claims_for(arch)
    return sum(f"feature:{_bare(name)}" in claims for name in preferred)


def _bare(name: str) -> str:
    return name.removeprefix("feature:")
