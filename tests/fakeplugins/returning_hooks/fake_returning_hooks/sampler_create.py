"""Returns something else from a hook."""

from deepinfer_core import hookimpl


@hookimpl
def deepinfer_sampler_create(name, params):
    return {"instead": "of it"}
