"""Raises in a hook."""

from deepinfer_core import hookimpl


@hookimpl
def deepinfer_backend_create(name, device, config):
    raise ValueError("raised by deepinfer_backend_create")
