"""Raises in a hook."""

from deepinfer_core import hookimpl


@hookimpl
def deepinfer_doctor_checks(host):
    raise ValueError("raised by deepinfer_doctor_checks")


@hookimpl
def deepinfer_backend_create(name, device, config):
    from deepinfer_cpu.backend import create

    return create(device, config)
