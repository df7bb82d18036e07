"""Its driver crashes the process."""

import os
import signal

from deepinfer_core import hookimpl


@hookimpl
def deepinfer_backend_probe(name, host):
    os.kill(os.getpid(), signal.SIGSEGV)


@hookimpl
def deepinfer_backend_create(name, device, config):
    raise RuntimeError("this fake makes no backend")
