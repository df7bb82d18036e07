"""The hook of the scorers. Each is imported when it is made."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from deepinfer_core import hookimpl
from deepinfer_core.errors import PluginMissing

if TYPE_CHECKING:
    from deepinfer_core.interfaces import Scorer

SCORERS = {
    "exact_match": "ExactMatch",
    "multiple_choice": "MultipleChoice",
    "numeric": "Numeric",
    "regex": "Regex",
}
"""Name, which is that of the module, and class."""


@hookimpl
def deepinfer_scorer_create(name: str, params: Mapping[str, Any]) -> Scorer:
    """The scorer called ``name``.

    :raises PluginMissing: this plugin has none of that name.
    :raises InvalidParameter: ``params`` holds what the scorer does not know, or a value that it cannot use.
    """
    if name not in SCORERS:
        raise PluginMissing(
            f"no scorer named {name!r} in deepinfer-eval",
            reason=f"it provides: {', '.join(SCORERS)}",
            remedy=f"use one of these, or install the plugin that provides {name!r}",
        )
    made: Scorer = getattr(import_module(f"deepinfer_eval.scorers.{name}"), SCORERS[name])(params)
    return made
