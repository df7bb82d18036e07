"""Returns something else from a hook."""

from deepinfer_core import hookimpl


@hookimpl
def deepinfer_grammar_create(name, tokenizer):
    return {"instead": "of it"}
