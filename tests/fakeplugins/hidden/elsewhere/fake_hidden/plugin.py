"""An old copy, which comes first on the import path."""

from deepinfer_core import hookimpl


@hookimpl
def deepinfer_backend_create(name, device, config):
    raise RuntimeError("this is the old copy")
