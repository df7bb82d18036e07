"""What a plugin of each kind must implement."""

from __future__ import annotations

REQUIRED_HOOKS = {
    "backend": ("deepinfer_backend_create",),
    "model": ("deepinfer_model_match", "deepinfer_cache_specs", "deepinfer_model_create"),
    "sampler": ("deepinfer_sampler_create",),
    "grammar": ("deepinfer_grammar_create",),
    "logits_filter": ("deepinfer_logits_filter_create",),
    "scorer": ("deepinfer_scorer_create",),
}
