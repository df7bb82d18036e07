"""Raises in a hook."""

from deepinfer_core import hookimpl


@hookimpl
def deepinfer_logits_filter_create(name, params):
    raise ValueError("raised by deepinfer_logits_filter_create")
