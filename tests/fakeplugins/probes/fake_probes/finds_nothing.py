"""There is no device."""

from deepinfer_core import hookimpl
from deepinfer_core.types import ProbeReport


@hookimpl
def deepinfer_backend_probe(name, host):
    return ProbeReport(present=False, usable=False, reasons=("no acme card",))


@hookimpl
def deepinfer_backend_create(name, device, config):
    raise RuntimeError("this fake makes no backend")
