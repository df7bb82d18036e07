"""Returns something else from a hook."""

from deepinfer_core import hookimpl


@hookimpl
def deepinfer_scorer_create(name, params):
    return {"instead": "of it"}
