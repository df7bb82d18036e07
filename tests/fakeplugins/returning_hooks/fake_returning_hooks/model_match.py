"""Returns something else from a hook: deepinfer_model_match."""

from deepinfer_core import hookimpl


@hookimpl
def deepinfer_model_match(card):
    return {"instead": "of it"}


@hookimpl
def deepinfer_cache_specs(match, config):
    return []


@hookimpl
def deepinfer_model_create(match, config, backend):
    raise RuntimeError("this fake makes no model")


@hookimpl
def deepinfer_scheduler_hints(match):
    return None
