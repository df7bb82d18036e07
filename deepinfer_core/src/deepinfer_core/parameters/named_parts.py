"""Plugins that a request names, with parameters: how ``SamplingParams`` reads them. Nothing is loaded here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from attrs import field, frozen

from deepinfer_core.parameters.values import refuse

MAX_FILTERS: Final = 16
"""Logits filters of one request at most."""
_MAX_TEXT: Final = 1 << 16
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)
_FORM: Final = 'the name of a plugin, or {"name": NAME, "params": {...}} with values of JSON'


@frozen
class NamedPart:
    """A plugin that a request names, with the parameters that it gives."""

    name: str
    params: Mapping[str, Any] = field(factory=dict, hash=False)

    def key(self, kind: str) -> str:
        """The same for equal names and parameters of one kind."""
        return json.dumps([kind, self.name, self.params], sort_keys=True)


def sampler(value: object) -> NamedPart | None:
    """The row sampler of a request."""
    return None if value is None else named_part("sampler", value)


def logits_filters(value: object) -> tuple[NamedPart, ...]:
    """The logits filters of a request, in the order in which they run."""
    if value is None:
        return ()
    listed = value if isinstance(value, list | tuple) else (value,)
    if len(listed) > MAX_FILTERS:
        raise refuse("logits_filters", value, f"at most {MAX_FILTERS} filters, each {_FORM}")
    return tuple(_part("logits_filters", item, value) for item in listed)


def named_part(field_name: str, value: object) -> NamedPart:
    """The plugin that ``value`` names, with its parameters. Raises InvalidParameter that names the field."""
    return _part(field_name, value, value)


def _part(field_name: str, item: object, value: object) -> NamedPart:
    if isinstance(item, NamedPart):
        return item
    if isinstance(item, str):
        item = {"name": item}
    if not isinstance(item, Mapping) or not {"name"} <= set(item) <= {"name", "params"}:
        raise refuse(field_name, value, _FORM)
    name, params = item["name"], item.get("params", {})
    if not isinstance(name, str) or not _NAME.fullmatch(name) or not isinstance(params, Mapping):
        raise refuse(field_name, value, _FORM)
    try:
        text = json.dumps(dict(params), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise refuse(field_name, value, _FORM) from None
    if len(text) > _MAX_TEXT or not all(isinstance(key, str) for key in params):
        raise refuse(field_name, value, f"{_FORM}, in at most {_MAX_TEXT} characters")
    return NamedPart(name, json.loads(text))  # a copy: what the caller keeps may change
