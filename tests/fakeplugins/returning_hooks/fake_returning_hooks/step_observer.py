"""Returns something else from a hook."""

from deepinfer_core import hookimpl


@hookimpl
def deepinfer_step_observer(config):
    return {"instead": "of it"}
