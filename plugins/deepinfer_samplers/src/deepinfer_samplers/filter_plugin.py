"""The hook of the logits filter ``top_n_sigma``. numpy is imported when a filter is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from deepinfer_core import hookimpl
from deepinfer_core.errors import InvalidParameter, PluginMissing

if TYPE_CHECKING:
    from deepinfer_core.interfaces import LogitsFilter

NAME = "top_n_sigma"
PARAMETERS = ("n",)


@hookimpl
def deepinfer_logits_filter_create(name: str, params: Mapping[str, Any]) -> LogitsFilter:
    """The filter ``top_n_sigma``, whose one parameter ``n`` is 1.0 unless given.

    :raises PluginMissing: ``name`` is not a logits filter of this plugin.
    :raises InvalidParameter: ``params`` holds another key, or ``n`` is not a finite number above 0.
    """
    if name != NAME:
        raise PluginMissing(
            f"no logits filter named {name!r} in deepinfer-samplers",
            reason=f"it provides: {NAME}",
            remedy=f"use {NAME!r}, or install the plugin that provides {name!r}",
        )
    unknown = ", ".join(repr(key) for key in sorted(params.keys() - set(PARAMETERS)))
    if unknown:
        raise InvalidParameter(
            f"logits filter {NAME!r} does not know {unknown}",
            reason=f"its parameters are: {', '.join(PARAMETERS)}",
            remedy=f"remove {unknown}",
        )
    from deepinfer_samplers.top_n_sigma import TopNSigma

    return TopNSigma(**params)
