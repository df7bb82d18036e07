"""Raises in a hook: deepinfer_scheduler_hints."""

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
    raise RuntimeError("this fake makes no model")


@hookimpl
def deepinfer_scheduler_hints(match):
    raise ValueError("raised by deepinfer_scheduler_hints")
