"""Misspells an argument of a hook."""

from deepinfer_core import hookimpl


@hookimpl
def deepinfer_backend_create(name, devise):
    raise RuntimeError("this fake makes no backend")
