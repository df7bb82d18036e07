"""Three hundred JSON schemas: a hundred by hand, one or more for each keyword, the others put together from parts.

``SCHEMAS`` holds them in a fixed order; each has a name that says where it comes from.
"""

from __future__ import annotations

import random
from datetime import datetime
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker

Schema = Any
SIZE = 300

_AB = {"a": {"type": "integer"}, "b": {"type": "string"}}
_TREE = {"type": "object", "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#"}}}}
_LIST = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "string"},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["value", "next"],
        }
    },
}
_SHAPES = {
    "oneOf": [
        {"type": "object", "properties": {"kind": {"const": "circle"}, "r": {"type": "number", "minimum": 0}},
         "required": ["kind", "r"]},
        {"type": "object", "properties": {"kind": {"const": "box"}, "w": {"type": "integer"}, "h": {"type": "integer"}},
         "required": ["kind", "w", "h"]},
    ]
}  # fmt: skip
_MUTUAL = {
    "type": "object",
    "properties": {"left": {"$ref": "#/$defs/a"}},
    "$defs": {
        "a": {"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}}, "required": ["b"]},
        "b": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}, "n": {"type": "null"}}, "required": ["n"]},
    },
}

BY_HAND: list[Schema] = [
    # types
    True, {}, {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}, {"type": "null"},
    {"type": "array"}, {"type": "object"}, {"type": ["string", "null"]}, {"type": ["integer", "number", "boolean"]},
    {"type": ["object", "array"], "properties": _AB, "items": {"type": "boolean"}},
    # constants
    {"const": None}, {"const": "日本 \"x\"\n"}, {"const": {"a": [1, 2.5, {"b": None}]}},
    {"enum": [1, "a", None, True, [1]]},
    {"enum": ["красный", "зелёный", "синий", "😀"]}, {"type": "string", "enum": ["a", 1, "b"]},
    {"enum": [0.1, 1e-7, 1e300]},
    # strings
    {"type": "string", "minLength": 3}, {"type": "string", "maxLength": 0},
    {"type": "string", "minLength": 2, "maxLength": 4},
    {"type": "string", "pattern": "^[a-z]+$"}, {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3},
    {"type": "string", "pattern": "^[A-Z]{2}[0-9]{4}$", "minLength": 6}, {"type": "string", "pattern": "foo|^bar|baz$"},
    {"type": "string", "pattern": "^a|b$"}, {"type": "string", "pattern": "^[^a-z]{1,5}$"},
    {"type": "string", "pattern": "^\\S+ \\S+$"},
    {"type": "string", "pattern": "^\\D{3}$"}, {"type": "string", "pattern": "^\\W\\w$"},
    {"type": "string", "pattern": "^.{3}$"},
    {"type": "string", "pattern": "^[а-яё]+$"}, {"type": "string", "pattern": "^[^é\\d]{2}$"},
    {"minLength": 2, "maxLength": 3},
    *({"type": "string", "format": name} for name in (
        "date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid", "json-pointer")),
    {"type": "string", "format": "uuid", "maxLength": 36},
    # numbers
    {"type": "integer", "minimum": -5, "maximum": 12},
    {"type": "integer", "exclusiveMinimum": 99, "exclusiveMaximum": 1001},
    {"type": "integer", "maximum": -1}, {"type": "integer", "minimum": 2.5}, {"type": "integer", "multipleOf": 7},
    {"type": "integer", "multipleOf": 25, "minimum": 0, "maximum": 1000},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, {"type": "number", "exclusiveMaximum": -0.25},
    {"type": "number", "minimum": -273.15}, {"type": "number", "minimum": 99.99, "maximum": 100.01},
    # arrays
    {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4}, {"type": "array", "minItems": 1},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
    {"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "string"}, "minItems": 2},
    {"type": "array", "prefixItems": [{"type": "null"}, {"type": "boolean"}], "items": False, "minItems": 1},
    {"type": "array", "items": False}, {"type": "array", "prefixItems": [True, False, True]},
    {"type": "array", "items": {"type": "array", "items": {"type": "number"}, "maxItems": 2}, "maxItems": 3},
    {"type": "array", "maxItems": 1, "uniqueItems": True}, {"type": "array", "unevaluatedItems": {"type": "null"}},
    # objects
    {"type": "object", "properties": _AB}, {"type": "object", "properties": _AB, "required": ["b"]},
    {"type": "object", "required": ["x"]}, {"type": "object", "properties": _AB, "required": ["c"]},
    {"type": "object", "properties": _AB, "additionalProperties": {"type": "null"}},
    {"type": "object", "properties": {"é": True, "a\"b": {"type": "null"}, "": {"type": "integer"}},
     "required": ["", "a\"b"]},
    {"type": "object", "properties": {"ab": {"const": 1}, "abc": {"const": 2}},
     "additionalProperties": {"type": "string"}},
    {"type": "object", "additionalProperties": False}, {"type": "object", "additionalProperties": {"type": "integer"}},
    {"type": "object", "patternProperties": {"^x[0-9]+$": {"type": "integer"}}, "maxProperties": 3},
    {"type": "object", "properties": _AB, "patternProperties": {"^x": {"type": "integer"}}, "required": ["a"]},
    {"type": "object", "propertyNames": {"pattern": "^[a-z]{1,3}$"}, "additionalProperties": {"type": "integer"}},
    {"type": "object", "propertyNames": {"enum": ["on", "off"]}},
    {"type": "object", "minProperties": 1, "maxProperties": 2},
    {"type": "object", "properties": _AB, "minProperties": 1},
    {"type": "object", "properties": _AB, "minProperties": 2},
    {"type": "object", "properties": _AB, "unevaluatedProperties": False},
    {"type": "object", "properties": {"a": False, **_AB}},
    # putting together
    {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "integer", "minimum": 5}, {"type": "null"}]},
    {"type": "object", "properties": _AB, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, _SHAPES,
    {"oneOf": [{"type": "string"}, {"type": "integer"}]},
    {"allOf": [{"type": "string"}, {"minLength": 2}, {"maxLength": 4}]},
    {"allOf": [{"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]},
     {"properties": {"z": {"const": 1}}}]},
    # references
    _TREE, _LIST, _MUTUAL, {"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {"type": "boolean"}}},
    {"$ref": "#/definitions/n", "minimum": 3, "definitions": {"n": {"type": "integer"}}},
    # annotations
    {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://example.org/s", "title": "t",
     "type": "string",
     "description": "d", "default": "x", "examples": ["y"], "deprecated": True, "readOnly": True, "$comment": "c",
     "x-note": 1},
    # refused: dropped or misread by the compiler, or nothing at all
    {"type": "string", "not": {"const": "a"}}, {"if": {"type": "string"}, "then": {"minLength": 2}},
    {"type": "array", "contains": {"type": "integer"}},
    {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
    {"type": "object", "properties": _AB, "dependentRequired": {"a": ["b"]}}, {"type": "number", "multipleOf": 0.01},
    {"type": "string", "pattern": "^(ab)+$", "maxLength": 3}, {"type": "string", "format": "iri"},
    {"oneOf": [{"type": "integer"}, {"type": "number"}]}, {"enum": []}, {"type": "wat"}, {"$ref": "#"},
    {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    {"type": "object", "propertyNames": {"not": {}}},
    {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 2},
    {"type": "string", "minLenght": 3},
]  # fmt: skip

_WORDS = ["id", "name", "größe", "имя", "値", "tags", "x1", "a", "ab", "user name", "to", "😀"]
_PATTERNS = ["^[a-z]{1,8}$", "^[A-Z][a-z]*$", "^\\d{3}-\\d{4}$", "^#[0-9a-f]{6}$", "^(yes|no|да)$", "x+", "^\\S{2,9}$"]
_FORMATS = ["date", "date-time", "uuid", "email", "ipv4", "time"]


def _string(rng: random.Random) -> Schema:
    return rng.choice([
        {"type": "string"},
        {"type": "string", "maxLength": rng.randint(0, 12)},
        {"type": "string", "minLength": rng.randint(0, 3), "maxLength": rng.randint(3, 9)},
        {"type": "string", "pattern": rng.choice(_PATTERNS)},
        {"type": "string", "format": rng.choice(_FORMATS)},
        {"enum": rng.sample(_WORDS, 3)},
    ])  # fmt: skip


def _number(rng: random.Random) -> Schema:
    low = rng.randint(-1000, 1000)
    step = rng.randint(1, 10_000)
    return rng.choice([
        {"type": "integer"},
        {"type": "integer", "minimum": low},
        {"type": "integer", "minimum": low, "maximum": low + step},
        {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + step + 1},
        {"type": "integer", "multipleOf": rng.randint(1, 60)},
        {"type": "number"},
        {"type": "number", "minimum": low / 100},
        {"type": "number", "exclusiveMaximum": low / 1000},
        {"type": "number", "minimum": low / 100, "maximum": (low + step) / 100},
        {"const": low / 8},
    ])  # fmt: skip


def _array(rng: random.Random, depth: int) -> Schema:
    out: Schema = {"type": "array"}
    if rng.random() < 0.3:
        out["prefixItems"] = [_schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.8:
        out["items"] = _schema(rng, depth - 1)
    if rng.random() < 0.5:
        out["minItems"] = rng.randint(0, 2)
    if rng.random() < 0.6:
        out["maxItems"] = rng.randint(2, 5)
    if rng.random() < 0.05:
        out["uniqueItems"] = True
    return out


def _object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(_WORDS, rng.randint(1, 4))
    out: Schema = {"type": "object", "properties": {name: _schema(rng, depth - 1) for name in names}}
    out["required"] = rng.sample(names, rng.randint(0, len(names)))
    choice = rng.random()
    if choice < 0.3:
        out["additionalProperties"] = rng.choice([False, False, True, {"type": "integer"}])
    elif choice < 0.4:
        out["patternProperties"] = {"^k_[a-z]+$": _schema(rng, depth - 1)}
    elif choice < 0.5:
        out["minProperties"] = 1
    elif choice < 0.55:
        out["dependentRequired"] = {names[0]: names}
    return out


def _choice(rng: random.Random, depth: int) -> Schema:
    if rng.random() < 0.5:
        return {"anyOf": [_schema(rng, depth - 1) for _ in range(rng.randint(2, 3))]}
    return {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": word}, "data": _schema(rng, depth - 1)},
                "required": ["kind"],
            }
            for word in rng.sample(_WORDS, 2)
        ]
    }


def _schema(rng: random.Random, depth: int) -> Schema:
    kind = rng.random()
    if depth <= 0 or kind < 0.35:
        return rng.choice([_string, _number])(rng) if rng.random() < 0.85 else {"type": rng.choice(["boolean", "null"])}
    if kind < 0.55:
        return _array(rng, depth)
    if kind < 0.85:
        return _object(rng, depth)
    if kind < 0.93:
        return _choice(rng, depth)
    if kind < 0.97:
        return {"$ref": f"#/$defs/{rng.choice('pq')}"}
    return {"allOf": [_object(rng, 0), {"description": "beside"}]}


def _put_together(index: int) -> Schema:
    rng = random.Random(f"schema {index}")
    out = _object(rng, 3) if index % 3 else _schema(rng, 4)
    if "$ref" in str(out):
        spare = {"type": "object", "properties": {"more": {"$ref": "#/$defs/p"}, "n": _number(rng)}}
        out = {
            **out,
            "$defs": {"p": spare, "q": {"anyOf": [_string(rng), {"type": "array", "items": {"$ref": "#/$defs/p"}}]}},
        }
    return out


SCHEMAS: list[tuple[str, Schema]] = [
    *((f"hand-{i}", schema) for i, schema in enumerate(BY_HAND)),
    *((f"built-{i}", _put_together(i)) for i in range(SIZE - len(BY_HAND))),
]

_formats = FormatChecker(("date", "email", "ipv4", "ipv6", "uuid"))
_iso = datetime.fromisoformat


@_formats.checks("time", raises=ValueError)
def _is_time(value: object) -> bool:
    return not isinstance(value, str) or bool(_iso("2000-01-01T" + value).tzinfo)


@_formats.checks("date-time", raises=ValueError)
def _is_date_time(value: object) -> bool:
    return not isinstance(value, str) or bool(_iso(value).tzinfo)


def validator(schema: Schema) -> Draft202012Validator:
    """An independent judge of a value, formats included."""
    return Draft202012Validator(schema, format_checker=_formats)
