"""Its driver never returns."""

import signal

from deepinfer_core import hookimpl


@hookimpl
def deepinfer_backend_probe(name, host):
    while True:
        signal.pause()


@hookimpl
def deepinfer_backend_create(name, device, config):
    raise RuntimeError("this fake makes no backend")
