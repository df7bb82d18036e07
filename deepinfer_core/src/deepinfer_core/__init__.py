"""DeepInfer core: hooks, plugin loading, the engine loop and the command line.

Importing this package imports nothing else; public names are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deepinfer_core.hookspecs import hookimpl
    from deepinfer_core.llm import LLM
    from deepinfer_core.parameters.sampling_params import SamplingParams
    from deepinfer_core.requests.outputs import RequestOutput, StreamChunk

API_VERSION = (1, 0)
"""Version of the plugin API (major, minor), apart from package versions (``spec/plugins.md`` 6)."""

_LAZY = {
    "hookimpl": "deepinfer_core.hookspecs",
    "LLM": "deepinfer_core.llm",
    "SamplingParams": "deepinfer_core.parameters.sampling_params",
    "RequestOutput": "deepinfer_core.requests.outputs",
    "StreamChunk": "deepinfer_core.requests.outputs",
}

__all__ = ["API_VERSION", "LLM", "RequestOutput", "SamplingParams", "StreamChunk", "hookimpl"]


def __getattr__(name: str) -> object:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'deepinfer_core' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value
