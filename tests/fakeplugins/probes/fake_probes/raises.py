"""It raises."""

from deepinfer_core import hookimpl


@hookimpl
def deepinfer_backend_probe(name, host):
    raise OSError("libacme.so: undefined symbol: acme_init")


@hookimpl
def deepinfer_backend_create(name, device, config):
    raise RuntimeError("this fake makes no backend")
