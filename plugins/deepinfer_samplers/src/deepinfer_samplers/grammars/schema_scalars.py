"""Strings, numbers and constants of a schema, in the forms that the compiler enforces.

Lengths become expressions: the compiler counts characters of a bounded string right, but lets control characters
through, and drops a length beside a pattern. Bounds of integers become whole and inclusive.
"""

from __future__ import annotations

import math
from typing import Any

from deepinfer_samplers.grammars import regex
from deepinfer_samplers.grammars.charset import JSON_PLAIN
from deepinfer_samplers.grammars.regex import Chars, Node, Repeat
from deepinfer_samplers.grammars.regex_rules import within
from deepinfer_samplers.grammars.schema_formats import FORMATS
from deepinfer_samplers.grammars.schema_keywords import NOTHING_FITS, refusal

Schema = dict[str, Any]
Path = tuple[str, ...]
MAX_EXACT = 2**53
MAX_MULTIPLE = 1024
MAX_VALUES = 1000
MAX_DECIMALS = 6


def count(node: Schema, key: str, path: Path) -> int | None:
    """A keyword that counts something; None if absent."""
    value = node.get(key)
    if value is None and key not in node:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise refusal((*path, key), f"{key} must be a whole number of at least 0, got {value!r}", key)
    return value


def string_node(node: Schema, path: Path) -> Node | None:
    """The strings that a schema of type string allows, as an expression; None: any string."""
    least, most = count(node, "minLength", path), count(node, "maxLength", path)
    if least is not None and most is not None and least > most:
        raise refusal(
            path, f"minLength {least} is above maxLength {most}", "minLength", "maxLength", reason=NOTHING_FITS
        )
    if "pattern" in node and "format" in node:
        raise refusal(path, "format and pattern cannot be enforced together", "format", "pattern")
    found = _described(node, path)
    if found is None:
        return None if least is None and most is None else Repeat(Chars(JSON_PLAIN), least or 0, most)
    keyword, described = found
    low, high = regex.lengths(described)
    if low >= (least or 0) and (most is None or (high is not None and high <= most)):
        return described
    given = [key for key in ("minLength", "maxLength") if key in node]
    if isinstance(described, Repeat) and isinstance(described.part, Chars):
        bounds = (
            max(described.least, least or 0),
            min((m for m in (described.most, most) if m is not None), default=None),
        )
        if bounds[1] is None or bounds[0] <= bounds[1]:
            return Repeat(described.part, *bounds)
        raise refusal(path, f"{' and '.join((keyword, *given))} allow no string together", keyword, *given)
    raise refusal(
        path,
        f"{' and '.join((keyword, *given))} cannot be enforced together",
        keyword,
        *given,
        remedy="put the length into the pattern, as in '^[a-z]{1,3}$'",
    )


def _described(node: Schema, path: Path) -> tuple[str, Node] | None:
    if "format" in node:
        name = node["format"]
        if name not in FORMATS:
            raise refusal(
                (*path, "format"), f"format {name!r} is not enforced", "format", remedy=f"use {', '.join(FORMATS)}"
            )
        return "format", regex.whole(regex.parse(FORMATS[name], regex.SCHEMA))
    if "pattern" not in node:
        return None
    pattern = node["pattern"]
    if not isinstance(pattern, str):
        raise refusal((*path, "pattern"), f"pattern must be a string, got {pattern!r}", "pattern")
    return "pattern", pattern_node(pattern, (*path, "pattern"))


def pattern_node(pattern: str, path: Path) -> Node:
    """The strings that hold a match of ``pattern``. Raises InvalidParameter for what cannot be enforced."""
    try:
        branches = regex.parse(pattern, regex.SCHEMA)
    except Exception as err:  # InvalidParameter: say where in the schema it is
        raise refusal(path, getattr(err, "what", str(err)), "pattern", reason=getattr(err, "reason", "")) from err
    kept = within(regex.anywhere(branches, JSON_PLAIN), JSON_PLAIN)
    if kept is None:
        raise refusal(
            path, f"pattern {pattern!r} demands a character that JSON writes as an escape", "pattern",
            reason='quotes, backslashes and control characters cannot be part of a pattern',
        )  # fmt: skip
    return kept


def number(node: Schema, kind: str, path: Path) -> Schema:
    """The lowered form of a number; ``kind`` is integer or number."""
    bounds = {key: _bound(node, key, path) for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")}
    given = {key: value for key, value in bounds.items() if value is not None}
    low = max((given[k] for k in ("minimum", "exclusiveMinimum") if k in given), default=-math.inf)
    high = min((given[k] for k in ("maximum", "exclusiveMaximum") if k in given), default=math.inf)
    if low > high or (low == high and low in (given.get("exclusiveMinimum"), given.get("exclusiveMaximum"))):
        raise refusal(path, f"no number is allowed between {low} and {high}", *given)
    if kind == "integer":
        return _integer(node, given, path)
    if "multipleOf" in node:
        raise refusal(
            (*path, "multipleOf"), "multipleOf is enforced for integers only", "multipleOf",
            remedy="use type integer in a smaller unit, or a string with a pattern",
        )  # fmt: skip
    for key, value in given.items():
        if abs(value) > MAX_EXACT or round(value, MAX_DECIMALS) != value:
            raise refusal(
                (*path, key), f"{key} {value!r} is not enforced exactly", key,
                reason=f"bounds of numbers have at most {MAX_DECIMALS} decimals and lie within 2**53",
            )  # fmt: skip
    return {"type": "number", **given}


def _integer(node: Schema, given: Schema, path: Path) -> Schema:
    lows = [math.ceil(given["minimum"])] if "minimum" in given else []
    lows += [math.floor(given["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in given else []
    highs = [math.floor(given["maximum"])] if "maximum" in given else []
    highs += [math.ceil(given["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in given else []
    low, high = max(lows, default=None), min(highs, default=None)
    if low is not None and high is not None and low > high:
        raise refusal(path, f"no integer is allowed between {low} and {high}", *given)
    if any(bound is not None and abs(bound) > MAX_EXACT for bound in (low, high)):
        raise refusal(path, "bounds of integers lie within 2**53", *given)
    out: Schema = {"type": "integer"}
    step = node.get("multipleOf")
    if "multipleOf" in node:
        if isinstance(step, float) and step.is_integer():
            step = int(step)
        if isinstance(step, bool) or not isinstance(step, int) or step < 1:
            raise refusal(
                (*path, "multipleOf"), f"multipleOf must be a whole number above 0, got {step!r}", "multipleOf"
            )
        if given:
            return _multiples(step, low, high, given, path)
        if step > MAX_MULTIPLE:
            raise refusal((*path, "multipleOf"), f"multipleOf {step} is above {MAX_MULTIPLE}", "multipleOf")
        return {**out, "multipleOf": step}
    if low is not None:
        out["minimum"] = low
    if high is not None:
        out["maximum"] = high
    return out


def _multiples(step: int, low: int | None, high: int | None, given: Schema, path: Path) -> Schema:
    if step == 1:
        return {"type": "integer", **{k: v for k, v in (("minimum", low), ("maximum", high)) if v is not None}}
    if low is None or high is None or (high - low) // step > MAX_VALUES:
        raise refusal(
            path, f"{' and '.join((*given, 'multipleOf'))} cannot be enforced together", *given, "multipleOf",
            reason=f"together they are written out as at most {MAX_VALUES} values",
        )  # fmt: skip
    values = list(range(-(-low // step) * step, high + 1, step))
    if not values:
        raise refusal(path, f"no multiple of {step} lies between {low} and {high}", *given, "multipleOf")
    return {"enum": values}


def _bound(node: Schema, key: str, path: Path) -> int | float | None:
    value = node.get(key)
    if key not in node:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise refusal((*path, key), f"{key} must be a number, got {value!r}", key)
    return value


def constants(node: Schema, types: tuple[str, ...], path: Path) -> Schema:
    """The lowered form of ``enum`` and ``const``, thinned out by ``types``."""
    values = [node["const"]] if "const" in node else node["enum"]
    if not isinstance(values, list) or not values:
        raise refusal((*path, "enum"), "enum must be a list of at least one value", "enum")
    if "const" in node and "enum" in node:
        if not isinstance(node["enum"], list):
            raise refusal((*path, "enum"), "enum must be a list of at least one value", "enum")
        values = [value for value in values if any(same(value, other) for other in node["enum"])]
    beside = [key for key in node if key not in ("enum", "const", "type")]
    if beside:
        raise refusal(path, f"{', '.join(beside)} beside constants is not enforced", *beside, "enum",
                      remedy="keep the constants that satisfy it, and leave it out")  # fmt: skip
    kept = [value for value in values if any(is_type(value, name) for name in types)]
    if not kept:
        raise refusal(path, "no constant is left", "enum", "const", "type", reason="type and constants contradict")
    for value in kept:
        _check_constant(value, path)
    return {"enum": kept}


def is_type(value: Any, name: str) -> bool:
    """Whether a value is of a type, as JSON schemas mean it: 1.0 is an integer, true is none."""
    if isinstance(value, bool):
        return name == "boolean"
    if isinstance(value, (int, float)):
        return name == "number" or (name == "integer" and float(value).is_integer())
    return {type(None): "null", str: "string", list: "array", dict: "object"}[type(value)] == name


def same(one: Any, other: Any) -> bool:
    """Equality of JSON values: true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


def _check_constant(value: Any, path: Path) -> None:
    if isinstance(value, str) and any(0xD800 <= ord(char) <= 0xDFFF for char in value):
        raise refusal(path, "a constant holds half of a surrogate pair", "enum", "const")
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        raise refusal(path, f"the constant {value} does not fit into 64 bits", "enum", "const")
    for item in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
        _check_constant(item, path)
    for key in value if isinstance(value, dict) else ():
        _check_constant(key, path)
