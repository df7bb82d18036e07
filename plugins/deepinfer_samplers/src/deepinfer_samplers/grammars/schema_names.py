"""The names of an object: those under ``properties`` and those that a schema leaves open.

The compiler lets an open name repeat a declared one by way of escapes, drops ``propertyNames`` beside ``properties``,
and drops a required name without a schema. So open names become one pattern that leaves the declared ones out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from deepinfer_samplers.grammars import charset
from deepinfer_samplers.grammars.charset import JSON_PLAIN
from deepinfer_samplers.grammars.regex import EMPTY, Chars, Choice, Node, Repeat, Sequence
from deepinfer_samplers.grammars.schema_keywords import refusal
from deepinfer_samplers.grammars.schema_match import matches
from deepinfer_samplers.grammars.schema_scalars import constants, count, pattern_node, string_node

Schema = dict[str, Any]
Path = tuple[str, ...]
Lower = Callable[[Any, Path], Schema]
Hold = Callable[[Node], str]
MAX_NAMES = 2_000


def object_schema(node: Schema, path: Path, lower: Lower, hold: Hold) -> Schema:
    """The lowered form of an object. ``hold`` keeps an expression and gives the pattern that stands for it."""
    properties, required = _declared(node, path)
    patterns = node.get("patternProperties", {})
    if not isinstance(patterns, dict):
        raise refusal((*path, "patternProperties"), "patternProperties must be an object", "patternProperties")
    others = _others(node, path)
    names = _names(node, path)
    if patterns and names is not None:
        raise refusal(
            path, "propertyNames beside patternProperties is not enforced", "propertyNames", "patternProperties"
        )
    if names is not None:
        for name in [name for name in properties if not matches(names, name)]:
            if name in required:
                raise refusal((*path, "propertyNames"), f"the required name {name!r} is not allowed", "propertyNames")
            properties[name] = False
    pattern = _only_pattern(patterns, path)
    for name in required:
        if properties.get(name, True) is False:
            raise refusal(
                (*path, "properties", name), "a required property may have no value", "required", "properties"
            )
        if name not in properties:
            properties[name] = _schema_of(name, pattern, patterns, others, node, path)
    lowered = {name: lower(s, (*path, "properties", name)) for name, s in properties.items() if s is not False}
    open_names = _open_names(node, path, properties, lowered, pattern, names, others)
    out: Schema = {"type": "object"}
    if lowered:
        out["properties"] = lowered
    if required:
        out["required"] = required
    if open_names is not None:
        expression, source, where = open_names
        if expression is None:
            out["additionalProperties"] = lower(source, where)
        else:
            out["patternProperties"] = {hold(expression): lower(source, where)}
    elif not lowered:
        out["additionalProperties"] = False
    return _counted(out, node, path, repeatable=open_names is not None)


def _declared(node: Schema, path: Path) -> tuple[dict[str, Any], list[str]]:
    properties, required = node.get("properties", {}), node.get("required", [])
    if not isinstance(properties, dict):
        raise refusal((*path, "properties"), "properties must be an object", "properties")
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise refusal((*path, "required"), "required must be a list of names", "required")
    if len(properties) > MAX_NAMES:
        raise refusal((*path, "properties"), f"{len(properties)} properties, allowed are {MAX_NAMES}", "properties")
    for name in (*properties, *required):
        if any(0xD800 <= ord(char) <= 0xDFFF for char in name):
            raise refusal((*path, "properties"), "a name holds half of a surrogate pair", "properties")
    return dict(properties), list(dict.fromkeys(required))


def _others(node: Schema, path: Path) -> Any:
    """The schema of names that are neither declared nor matched; None: the schema does not say."""
    given = [key for key in ("additionalProperties", "unevaluatedProperties") if key in node]
    if len(given) == 2:
        raise refusal(path, "additionalProperties beside unevaluatedProperties is not enforced", *given)
    return node[given[0]] if given else None


def _names(node: Schema, path: Path) -> Node | None:
    """The names that ``propertyNames`` allows."""
    schema = node.get("propertyNames", True)
    where = (*path, "propertyNames")
    if schema is True:
        return None
    if not isinstance(schema, dict) or schema.get("type", "string") != "string":
        raise refusal(where, "propertyNames must be a schema of strings", "propertyNames")
    extra = [k for k in schema if k not in ("type", "enum", "const", "pattern", "format", "minLength", "maxLength")]
    if extra:
        raise refusal(where, f"{', '.join(extra)} is not enforced for names", "propertyNames", *extra)
    if "enum" in schema or "const" in schema:
        values = constants(schema, ("string",), where)["enum"]
        return Choice(tuple(spelled(value) for value in values if plain(value)))
    return string_node(schema, where)


def _only_pattern(patterns: dict[str, Any], path: Path) -> Node | None:
    if len(patterns) > 1:
        raise refusal(
            (*path, "patternProperties"), "more than one pattern is not enforced", "patternProperties",
            reason="a name that matches two patterns would have to satisfy both",
        )  # fmt: skip
    return next((pattern_node(text, (*path, "patternProperties", text)) for text in patterns), None)


def _schema_of(name: str, pattern: Node | None, patterns: Schema, others: Any, node: Schema, path: Path) -> Any:
    """The schema of a required name that ``properties`` does not describe."""
    if pattern is not None and matches(pattern, name):
        return next(iter(patterns.values()))
    if others is False:
        raise refusal(
            (*path, "required"), f"the required name {name!r} is not allowed", "required", "additionalProperties"
        )
    return True if others is None else others


def _open_names(
    node: Schema, path: Path, properties: Schema, lowered: Schema, pattern: Node | None, names: Node | None, others: Any
) -> tuple[Node | None, Any, Path] | None:
    """Expression (None: any name), schema and place of the names that are left open; None if there are none."""
    if pattern is not None:
        text, source = next(iter(node["patternProperties"].items()))
        twice = next((name for name in node.get("properties", {}) if matches(pattern, name)), None)
        if twice is not None:
            raise refusal(
                (*path, "patternProperties", text), f"it also matches the property {twice!r}",
                "patternProperties", "properties", reason="a value would have to satisfy both schemas",
            )  # fmt: skip
        if source is False:
            return None
        if any(matches(pattern, name) for name in properties):
            return None  # required names that the pattern matches stand under properties already
        return pattern, source, (*path, "patternProperties", text)
    key = "unevaluatedProperties" if "unevaluatedProperties" in node else "additionalProperties"
    if others is None:
        others = not properties or names is not None
    if others is False:
        return None
    if names is not None:
        if properties:
            raise refusal(path, "propertyNames beside properties and open names is not enforced", "propertyNames", key)
        return names, others, (*path, key)
    return (other_than(properties) if properties else None), others, (*path, key)


def _counted(out: Schema, node: Schema, path: Path, *, repeatable: bool) -> Schema:
    least, most = count(node, "minProperties", path), count(node, "maxProperties", path)
    needed = len(out.get("required", ()))
    if most is not None:
        if most < max(needed, least or 0):
            raise refusal(path, f"maxProperties {most} is below what is required", "maxProperties", "required")
        if not repeatable and most >= len(out.get("properties", ())):
            most = None
    if least is not None and least > needed:
        if repeatable and least > 1:
            raise refusal(
                (*path, "minProperties"), f"minProperties {least} with open names is not enforced", "minProperties",
                reason="an open name may be written twice and then counts once",
            )  # fmt: skip
        if not repeatable and least > len(out.get("properties", ())):
            raise refusal((*path, "minProperties"), f"there are no {least} properties to write", "minProperties")
        out["minProperties"] = least
    if most == 0:
        return {"type": "object", "additionalProperties": False}
    return out if most is None else {**out, "maxProperties": most}


def plain(name: str) -> bool:
    """Whether JSON writes a name as it is."""
    return all(any(low <= ord(char) <= high for low, high in JSON_PLAIN) for char in name)


def spelled(name: str) -> Node:
    """The expression of one name."""
    return Sequence(tuple(Chars(charset.chars(char)) for char in name))


def other_than(names: Iterable[str]) -> Node:
    """Every name without escapes that is none of ``names``: for each way to begin, what must not follow."""
    taken = {name for name in names if plain(name)}
    following: dict[str, set[str]] = {"": set()}
    for name in sorted(taken):
        for end in range(len(name)):
            following.setdefault(name[:end], set()).add(name[end])
        following.setdefault(name, set())
    branches: list[Node] = []
    for begin, after in following.items():
        allowed = charset.intersection(JSON_PLAIN, charset.complement(charset.chars("".join(after))))
        rest = Sequence((Chars(allowed), Repeat(Chars(JSON_PLAIN), 0, None)))
        branches.append(Sequence((spelled(begin), rest)))
        if begin not in taken:
            branches.append(Sequence((spelled(begin), EMPTY)))
    return Choice(tuple(branches))
