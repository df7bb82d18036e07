"""Raises in a hook: deepinfer_model_create."""

from deepinfer_core import hookimpl
from deepinfer_core.types import ModelMatch, Requirements


@hookimpl
def deepinfer_model_match(card):
    return ModelMatch(name="tiny", requirements=Requirements())


@hookimpl
def deepinfer_cache_specs(match, config):
    return []


@hookimpl
def deepinfer_model_create(match, config, backend):
    raise ValueError("raised by deepinfer_model_create")


@hookimpl
def deepinfer_scheduler_hints(match):
    return None
