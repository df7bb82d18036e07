"""Imports torch at module level, and would be slow to import for everybody."""

import torch

from deepinfer_core import hookimpl


@hookimpl
def deepinfer_backend_create(name, device, config):
    raise RuntimeError(f"no device {torch.device('meta')} here")
