"""Raises in a hook."""

from deepinfer_core import hookimpl


@hookimpl
def deepinfer_grammar_create(name, tokenizer):
    raise ValueError("raised by deepinfer_grammar_create")
