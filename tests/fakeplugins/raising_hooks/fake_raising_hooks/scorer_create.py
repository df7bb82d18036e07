"""Raises in a hook."""

from deepinfer_core import hookimpl


@hookimpl
def deepinfer_scorer_create(name, params):
    raise ValueError("raised by deepinfer_scorer_create")
