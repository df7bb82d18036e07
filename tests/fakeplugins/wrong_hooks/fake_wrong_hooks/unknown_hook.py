"""Misspells a hook."""

from deepinfer_core import hookimpl


@hookimpl
def deepinfer_backend_crate(name, device, config):
    raise RuntimeError("this fake makes no backend")
