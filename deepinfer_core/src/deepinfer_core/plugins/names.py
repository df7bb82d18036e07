"""Names of plugins: their form, words that no plugin may have, and who owns the first-party ones."""

from __future__ import annotations

from collections.abc import Mapping

from deepinfer_core.errors import ManifestError
from deepinfer_core.plugins.manifest import NAME

RESERVED_WORDS = frozenset({"auto", "none", "all"})
# A first-party name belongs to one distribution; another one gets it only through plugins.prefer.
FIRST_PARTY = {
    ("backend", "cpu"): "deepinfer-cpu",
    ("backend", "cuda"): "deepinfer-cuda",
    ("backend", "ascend"): "deepinfer-ascend",
    ("model", "deepseek_v41"): "deepinfer-v41",
    ("sampler", "canonical"): "deepinfer-samplers",
    ("grammar", "xgrammar"): "deepinfer-samplers",
    ("logits_filter", "top_n_sigma"): "deepinfer-samplers",
    ("extension", "bench"): "deepinfer-bench",
    ("extension", "verification"): "deepinfer-verify",
    ("scorer", "exact_match"): "deepinfer-eval",
    ("scorer", "numeric"): "deepinfer-eval",
    ("scorer", "multiple_choice"): "deepinfer-eval",
    ("scorer", "regex"): "deepinfer-eval",
    ("extension", "eval"): "deepinfer-eval",
    ("extension", "metrics"): "deepinfer-metrics",
}
FIRST_PARTY_DISTRIBUTIONS = frozenset(FIRST_PARTY.values())
_RESERVED_NAMES = {name for _, name in FIRST_PARTY}


def name_problem(kind: str, name: str, distribution: str, prefer: Mapping[str, str]) -> ManifestError | None:
    """Why ``distribution`` cannot have this name, or None. ``prefer`` (KIND:NAME -> distribution) may allow it."""
    if not NAME.fullmatch(name):
        return ManifestError(f"the name {name!r} is not of the form [a-z][a-z0-9_]*, at most 32 characters")
    if name in RESERVED_WORDS:
        return ManifestError(f"the name {name!r} is reserved")
    owner = FIRST_PARTY.get((kind, name))
    if name not in _RESERVED_NAMES or distribution == owner or prefer.get(f"{kind}:{name}") == distribution:
        return None
    return ManifestError(
        f"the name {name!r} is reserved for {owner or 'first-party plugins'}",
        reason="no other distribution gets it unless a setting says so, so that none can slip in under that name",
        remedy=f'set plugins.prefer."{kind}:{name}" = "{distribution}" if you want this plugin in its place',
    )
