"""A backend that works: the ops of cpu, under its own name."""

from deepinfer_core import hookimpl
from deepinfer_core.types import ProbeReport


@hookimpl
def deepinfer_backend_probe(name, host):
    return ProbeReport(present=True, usable=True, devices=("toy1",), arch="toy1", score=3)


@hookimpl
def deepinfer_backend_create(name, device, config):
    from deepinfer_cpu.backend import CpuBackend

    class Good(CpuBackend):
        pass

    made = Good(config.num_threads or 1)
    made.name = name
    return made
