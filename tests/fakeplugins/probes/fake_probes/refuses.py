"""There is a device, and it cannot be used."""

from deepinfer_core import hookimpl
from deepinfer_core.types import ProbeReport


@hookimpl
def deepinfer_backend_probe(name, host):
    return ProbeReport(
        present=True, usable=False, devices=("acme2",), reasons=("driver 410 is too old",), remedy="install driver 450"
    )


@hookimpl
def deepinfer_backend_create(name, device, config):
    raise RuntimeError("this fake makes no backend")
