"""Raises in a hook."""

from deepinfer_core import hookimpl


@hookimpl
def deepinfer_configure(config):
    raise ValueError("raised by deepinfer_configure")


@hookimpl
def deepinfer_backend_create(name, device, config):
    from deepinfer_cpu.backend import create

    return create(device, config)
