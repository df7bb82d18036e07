"""It returns something else than a report."""

from deepinfer_core import hookimpl


@hookimpl
def deepinfer_backend_probe(name, host):
    return {"present": True}


@hookimpl
def deepinfer_backend_create(name, device, config):
    raise RuntimeError("this fake makes no backend")
