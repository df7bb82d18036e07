"""Returns something else from a hook."""

from deepinfer_core import hookimpl


@hookimpl
def deepinfer_backend_create(name, device, config):
    return {"instead": "of it"}
