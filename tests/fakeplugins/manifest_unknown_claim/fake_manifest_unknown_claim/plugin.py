"""Would work if it could be loaded."""

from deepinfer_core import hookimpl


@hookimpl
def deepinfer_backend_create(name, device, config):
    raise RuntimeError("this fake makes no backend")
