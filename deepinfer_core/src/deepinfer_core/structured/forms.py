"""What a request may ask for (``spec/sampling.md`` 3.1), checked before it is queued.

One way to say it is ``so_args``: ``schema_type``, ``schema``, ``trigger_token_ids`` and ``bound_token_id``. The others,
``json_schema``, ``regex``, ``grammar``, ``json_object`` and ``response_format``, are short for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import frozen

from deepinfer_core.errors import InvalidParameter
from deepinfer_core.settings import did_you_mean
from deepinfer_core.structured.sizes import check_json, check_text

INT32_MAX = 2**31 - 1
SCHEMA_TYPES = ("json", "regex", "ebnf", "structural_tag", "json_object")
RESPONSE_FORMATS = ("text", "json_object", "json_schema", "regex", "grammar", "structural_tag")
NAMES = ("so_args", "json_schema", "regex", "grammar", "json_object", "response_format")
"""Fields of ``SamplingParams`` that say it."""
_SO_KEYS = ("schema_type", "schema", "trigger_token_ids", "bound_token_id")
_FORMAT_KEYS = {
    "json_schema": "json_schema",
    "regex": "regex",
    "grammar": "grammar",
    "structural_tag": "structural_tag",
}


@frozen
class StructuredOutput:
    """A checked ``so_args``. Make one with :func:`read_so_args` or one of the other readers."""

    schema_type: str
    """``json``, ``regex``, ``ebnf``, ``structural_tag`` or ``json_object``."""
    schema: str
    """Its text; empty for ``json_object``."""
    trigger_token_ids: tuple[int, ...] = ()
    """The grammar starts behind this sequence; empty: at once."""
    bound_token_id: int | None = None
    """Behind this token the rest of the trigger is forced."""

    def for_engine(self) -> dict[str, str]:
        """What a grammar engine compiles."""
        return {"schema_type": self.schema_type, "schema": self.schema}

    def as_record(self) -> dict[str, object]:
        """The same as JSON-serialisable ``so_args``."""
        record: dict[str, object] = dict(self.for_engine())
        if self.trigger_token_ids:
            record["trigger_token_ids"] = list(self.trigger_token_ids)
        if self.bound_token_id is not None:
            record["bound_token_id"] = self.bound_token_id
        return record

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise InvalidParameter for a trigger or bound token that the model does not have."""
        bound = () if self.bound_token_id is None else (self.bound_token_id,)
        for name, tokens in (("trigger_token_ids", self.trigger_token_ids), ("bound_token_id", bound)):
            for token in tokens:
                if token >= vocab_size:
                    raise _refuse(f"so_args: {name}", token, f"token ids from 0 to {vocab_size - 1}")


def read_so_args(value: object) -> StructuredOutput | None:
    """Raises InvalidParameter that names the key, its value and what is allowed."""
    if value is None or isinstance(value, StructuredOutput):
        return value
    if not isinstance(value, Mapping):
        raise _refuse("so_args", value, "a mapping with schema_type and schema")
    for key in value:
        if key not in _SO_KEYS:
            guess = did_you_mean(str(key), _SO_KEYS)
            raise InvalidParameter(
                f"so_args has the key {key!r}, which is not allowed{guess}",
                remedy="known keys: " + ", ".join(_SO_KEYS),
                details={"field": "so_args", "key": str(key), "allowed": list(_SO_KEYS)},
            )
    kind = value.get("schema_type")
    if not isinstance(kind, str) or kind not in SCHEMA_TYPES:
        raise _refuse("so_args: schema_type", kind, "one of " + ", ".join(SCHEMA_TYPES))
    schema = value.get("schema", "" if kind == "json_object" else None)
    trigger = _token_ids(value.get("trigger_token_ids"))
    bound = value.get("bound_token_id")
    if bound is not None:
        bound = _token_id("so_args: bound_token_id", bound)
        if not trigger:
            raise _refuse("so_args: bound_token_id", bound, "left out, or together with non-empty trigger_token_ids")
    return StructuredOutput(kind, _checked_schema("so_args: schema", kind, schema), trigger, bound)


def read_json_schema(value: object) -> str | None:
    """A JSON schema, as an object or as JSON text. Returns JSON text. Raises InvalidParameter."""
    return None if value is None else _json_text("json_schema", value)


def read_regex(value: object) -> str | None:
    return None if value is None else _checked_schema("regex", "regex", value)


def read_grammar(value: object) -> str | None:
    return None if value is None else _checked_schema("grammar", "ebnf", value)


def read_json_object(value: object) -> bool:
    if not isinstance(value, bool):
        raise _refuse("json_object", value, "true or false")
    return value


def read_response_format(value: object) -> StructuredOutput | None:
    """``{"type": ...}``, or its type alone. ``text`` is no constraint. Raises InvalidParameter listing the types."""
    if value is None or isinstance(value, StructuredOutput):
        return value
    fields: Mapping[Any, Any] = {"type": value} if isinstance(value, str) else value  # type: ignore[assignment]
    kind = fields.get("type") if isinstance(fields, Mapping) else None
    if kind in ("text", "none") or (isinstance(fields, Mapping) and "type" in fields and kind is None):
        _only_keys(fields, ("type",))
        return None
    if not isinstance(kind, str) or kind not in RESPONSE_FORMATS:
        shown = kind if isinstance(fields, Mapping) else value
        raise _refuse("response_format: type", shown, "one of " + ", ".join(RESPONSE_FORMATS))
    if kind == "json_object":
        _only_keys(fields, ("type",))
        return StructuredOutput("json_object", "")
    key = _FORMAT_KEYS[kind]
    _only_keys(fields, ("type", key))
    name, given = f"response_format: {key}", fields.get(key)
    if kind == "json_schema":
        return StructuredOutput("json", _json_text(name, _wrapped_schema(name, given)))
    if kind == "structural_tag":
        return StructuredOutput("structural_tag", _json_text(name, given))
    return StructuredOutput("ebnf" if kind == "grammar" else kind, _checked_schema(name, kind, given))


def chosen(given: Mapping[str, StructuredOutput | None]) -> StructuredOutput | None:
    """The one that is set. Raises InvalidParameter where two are."""
    found = {name: value for name, value in given.items() if value is not None}
    if len(found) > 1:
        names = " and ".join(found)
        raise InvalidParameter(
            f"{names} are given together",
            reason="an answer has one grammar",
            remedy="give one of them",
            details={"field": next(iter(found)), "given": list(found)},
        )
    return next(iter(found.values()), None)


def _wrapped_schema(name: str, value: object) -> object:
    """``{"name": ..., "schema": {...}}`` as chat interfaces write it, or the schema itself."""
    if not isinstance(value, Mapping) or "schema" not in value or not isinstance(value["schema"], Mapping):
        return value
    extra = set(value) - {"name", "description", "schema", "strict"}
    if extra:
        return value
    if value.get("strict") is False:
        raise _refuse(f"{name}: strict", False, "true or left out: the schema is always enforced")
    return value["schema"]


def _json_text(name: str, value: object) -> str:
    allowed = "a JSON schema: an object, or its JSON text"
    if isinstance(value, str):
        return _checked_schema(name, "json", value)
    if not isinstance(value, Mapping):
        raise _refuse(name, value, allowed)
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as err:  # ValueError also for a reference to itself
        raise InvalidParameter(
            f"{name} is no JSON value", reason=str(err) or type(err).__name__, details={"field": name}
        ) from None
    return _checked_schema(name, "json", text)


def _checked_schema(name: str, kind: str, value: object) -> str:
    """Form and size. What it means is the grammar engine's business."""
    if not isinstance(value, str):
        raise _refuse(name, value, "a text")
    if kind == "json_object":
        if value:
            raise _refuse(name, value, "left out for json_object")
        return ""
    if not value:
        raise _refuse(name, value, "a text that is not empty")
    check_text(name, kind, value)
    if kind in ("json", "structural_tag"):
        check_json(name, value)
    return value


def _only_keys(fields: Mapping[Any, Any], allowed: tuple[str, ...]) -> None:
    for key in fields:
        if key not in allowed:
            raise _refuse("response_format: key", key, ", ".join(allowed))


def _token_ids(value: object) -> tuple[int, ...]:
    name, allowed = "so_args: trigger_token_ids", "a list of token ids (integers >= 0)"
    if value is None:
        return ()
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise _refuse(name, value, allowed)
    return tuple(_token_id(name, item) for item in value)


def _token_id(name: str, value: object) -> int:
    # A bool is no integer here, although Python thinks so.
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise _refuse(name, value, "token ids: integers >= 0")
    try:
        number = int(value.__index__())
    except TypeError:  # an array of several numbers
        number = -1
    if not 0 <= number <= INT32_MAX:
        raise _refuse(name, value, "token ids: integers >= 0")
    return number


def _refuse(name: str, value: object, allowed: str) -> InvalidParameter:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return InvalidParameter(
        f"{name} is {shown}; allowed: {allowed}", details={"field": name, "value": shown, "allowed": allowed}
    )
