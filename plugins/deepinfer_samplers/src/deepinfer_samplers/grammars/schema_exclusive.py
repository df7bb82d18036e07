"""Whether two branches of ``oneOf`` can hold for one value: the compiler treats ``oneOf`` as ``anyOf``.

The answer is about the schemas as written, so that it holds for every validator. What it cannot see, it denies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deepinfer_samplers.grammars.schema_scalars import is_type, same

Resolve = Callable[[Any], Any]
MAX_DEPTH = 16
_OPENING = ("additionalProperties", "unevaluatedProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf")


def exclusive(one: Any, other: Any, resolve: Resolve, depth: int = 0) -> bool:
    """Whether no value satisfies both. ``resolve`` follows the reference that a schema consists of."""
    one, other = resolve(one), resolve(other)
    if one is False or other is False:
        return True
    if depth > MAX_DEPTH or not isinstance(one, dict) or not isinstance(other, dict):
        return False
    for a, b in ((one, other), (other, one)):
        for key in ("anyOf", "oneOf"):
            if isinstance(a.get(key), list) and all(exclusive(item, b, resolve, depth + 1) for item in a[key]):
                return True
        if isinstance(a.get("allOf"), list) and any(exclusive(item, b, resolve, depth + 1) for item in a["allOf"]):
            return True
        if "$ref" in a and exclusive({"$ref": a["$ref"]}, b, resolve, depth + 1):
            return True
    values, others = _values(one), _values(other)
    if values is not None and others is not None:
        return not any(same(value, item) for value in values for item in others)
    for known, schema in ((values, other), (others, one)):
        types = _types(schema)
        if known is not None and types is not None and not any(is_type(v, t) for v in known for t in types):
            return True
    types, rest = _types(one), _types(other)
    if types is not None and rest is not None and not _share(types, rest):
        return True
    return _only(types, "object") and _only(rest, "object") and _by_property(one, other, resolve, depth)


def _by_property(one: dict[str, Any], other: dict[str, Any], resolve: Resolve, depth: int) -> bool:
    """A property that one of them requires and whose schemas exclude each other, or that the other forbids."""
    mine, theirs = one.get("properties", {}), other.get("properties", {})
    if not isinstance(mine, dict) or not isinstance(theirs, dict):
        return False
    for a, b, needed in ((mine, theirs, one), (theirs, mine, other)):
        closed = other if needed is one else one
        for name in needed.get("required", ()):
            if name in a and name in b and exclusive(a[name], b[name], resolve, depth + 1):
                return True
            if name not in b and closed.get("additionalProperties") is False and "patternProperties" not in closed:
                return True
    return all(any(_never_writes(a, name) for name in b.get("required", ())) for a, b in ((one, other), (other, one)))


def _never_writes(schema: dict[str, Any], name: str) -> bool:
    """Whether no output under ``schema`` has the property: names that a schema does not mention are not generated."""
    closed = bool(schema.get("properties")) and not any(key in schema for key in _OPENING)
    return closed and name not in schema["properties"] and name not in schema.get("required", ())


def _values(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _types(schema: dict[str, Any]) -> list[str] | None:
    kind = schema.get("type")
    return [kind] if isinstance(kind, str) else kind if isinstance(kind, list) else None


def _share(one: list[str], other: list[str]) -> bool:
    wide = [{"number"} if t == "integer" else {t} for t in other]
    return any(({"number"} if t == "integer" else {t}) in wide for t in one)


def _only(types: list[str] | None, kind: str) -> bool:
    return types == [kind]
