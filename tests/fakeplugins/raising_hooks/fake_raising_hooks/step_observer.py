"""Raises in a hook."""

from deepinfer_core import hookimpl


@hookimpl
def deepinfer_step_observer(config):
    raise ValueError("raised by deepinfer_step_observer")
