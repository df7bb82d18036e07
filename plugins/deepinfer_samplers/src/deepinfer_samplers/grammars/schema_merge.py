"""One schema that says what several say together: for ``allOf``, and for keywords beside ``$ref`` and ``anyOf``."""

from __future__ import annotations

from typing import Any

from deepinfer_samplers.grammars.schema_keywords import ANNOTATIONS, refusal

Schema = dict[str, Any]
_TIGHTER = {
    "minimum": max, "exclusiveMinimum": max, "minLength": max, "minItems": max, "minProperties": max,
    "maximum": min, "exclusiveMaximum": min, "maxLength": min, "maxItems": min, "maxProperties": min,
}  # fmt: skip
# Keywords that look at their neighbours: what they mean changes when names come in from another schema.
_CLOSING = ("additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames")


def merge(one: Schema, other: Schema, path: tuple[str, ...]) -> Schema:
    """``one`` and ``other`` at once. Raises InvalidParameter where that cannot be said in one schema."""
    out = {key: value for key, value in one.items() if key not in ANNOTATIONS}
    added = {key: value for key, value in other.items() if key not in ANNOTATIONS}
    for key in _CLOSING:
        for a, b in ((out, added), (added, out)):
            names = {*a.get("properties", ()), *a.get("required", ())}
            if (key in b and a.get(key, b) != b[key]) or (key in b and names - set(b.get("properties", ()))):
                raise refusal(path, f"{key} of one schema meets the properties of another", key, "allOf")
    for key, value in added.items():
        if key not in out or out[key] == value:
            out[key] = value
        elif key in _TIGHTER and all(_is_number(v) for v in (value, out[key])):
            out[key] = _TIGHTER[key](value, out[key])
        elif key == "required" and isinstance(value, list) and isinstance(out[key], list):
            out[key] = [*out[key], *(name for name in value if name not in out[key])]
        elif key == "type":
            out[key] = _types(out[key], value, path)
        elif key == "enum" and isinstance(value, list) and isinstance(out[key], list):
            out[key] = [item for item in out[key] if item in value]
        elif key == "properties" and isinstance(value, dict) and isinstance(out[key], dict):
            out[key] = _properties(out[key], value, path)
        elif key == "allOf" and isinstance(value, list) and isinstance(out[key], list):
            out[key] = [*out[key], *value]
        else:
            raise refusal(path, f"two schemas that hold together both give {key}", key, "allOf")
    return out


def _types(one: Any, other: Any, path: tuple[str, ...]) -> list[str]:
    a, b = ([t] if isinstance(t, str) else t for t in (one, other))
    if not isinstance(a, list) or not isinstance(b, list):
        raise refusal(path, "type must be a name or a list of names", "type")
    both = [t for t in a if t in b or (t == "integer" and "number" in b)]
    both += [t for t in b if t == "integer" and "number" in a and t not in both]
    if not both:
        raise refusal(path, f"no value is both {one!r} and {other!r}", "type", reason="nothing would be allowed")
    return both


def _properties(one: Schema, other: Schema, path: tuple[str, ...]) -> Schema:
    out = dict(one)
    for name, schema in other.items():
        if name in out and out[name] != schema and not (out[name] is True or schema is True):
            raise refusal((*path, "properties", name), "two schemas that hold together both describe it", "properties")
        if name not in out or out[name] is True:
            out[name] = schema
    return out


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
