"""A JSON schema in the form that the compiler enforces whole, or a refusal that names keyword and place.

The compiler drops or misreads many keywords without a word. So nothing goes to it as it came: every place of the
schema is written anew with the few keywords that were tested to hold (``tests/test_schema_walks.py``), and what has no
such form is refused. Everything that the result allows satisfies the schema; some of what the schema allows is not
generated (``docs/reference/structured-output.md``).
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from attrs import frozen

from deepinfer_core.errors import InvalidParameter
from deepinfer_samplers.grammars.regex import Node
from deepinfer_samplers.grammars.schema_exclusive import exclusive
from deepinfer_samplers.grammars.schema_keywords import (
    ANNOTATIONS,
    NOTHING_FITS,
    OF_TYPE,
    TYPES,
    check_keywords,
    refusal,
)
from deepinfer_samplers.grammars.schema_merge import merge
from deepinfer_samplers.grammars.schema_names import object_schema
from deepinfer_samplers.grammars.schema_refs import circular, endless, followed, look_up, target_path
from deepinfer_samplers.grammars.schema_scalars import constants, count, number, string_node

Schema = dict[str, Any]
Path = tuple[str, ...]
MAX_BYTES = 1_048_576
MAX_DEPTH = 64
MAX_PLACES = 20_000
"""Places of the lowered schema: merging branches may multiply them."""


@frozen
class Lowered:
    """A schema in the form that is enforced. ``expressions[i]`` is what the pattern ``held(i)`` in it stands for."""

    schema: Schema | bool
    expressions: tuple[Node, ...]


def held(index: int) -> str:
    """The pattern that stands for an expression until the schema is a grammar."""
    return f"^Q{index}Q$"


def lowered(text: str) -> Lowered:
    """The schema ``text`` as it is enforced. Raises InvalidParameter for what is malformed or is not."""
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise refusal((), f"the schema has more than {MAX_BYTES:,} bytes", reason="it would compile for minutes")
    try:
        schema = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as err:
        raise InvalidParameter(
            "the schema is no JSON", reason=str(err) or "it is nested too deeply", remedy="repair the schema"
        ) from None
    return lower(schema)


def lower(schema: Any) -> Lowered:
    """The same for a schema that was read already."""
    lowering = Lowering(schema)
    return Lowered(lowering.result(), tuple(lowering.expressions))


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


class Lowering:
    """One schema on its way; ``result`` does it."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.definitions: dict[str, Schema] = {}
        self.places: dict[Path, str] = {}
        self.expressions: list[Node] = []
        self.lowered_places = 0

    def result(self) -> Schema | bool:
        """The lowered schema with its definitions."""
        out = self.lower(self.root, ())
        dead = endless(self.definitions, out)
        if dead:
            where = next((place for place, name in self.places.items() if name in dead), ())
            raise circular(where)
        return {**out, "$defs": self.definitions} if self.definitions else out

    def lower(self, schema: Any, path: Path, depth: int = 0) -> Schema:
        """The lowered form of the schema at ``path``; ``depth`` counts merges at one place."""
        self.lowered_places += 1
        if len(path) > MAX_DEPTH * 2 or depth > MAX_DEPTH:
            raise refusal(path[:8], f"the schema is nested more than {MAX_DEPTH} deep", reason="it would not compile")
        if self.lowered_places > MAX_PLACES:
            raise refusal(
                path, f"the schema has more than {MAX_PLACES:,} places", reason="it would compile for minutes"
            )
        if schema is True:
            return {}
        if schema is False:
            raise refusal(path, "the schema 'false' allows no value", reason="a value has to be written here")
        if not isinstance(schema, dict):
            raise refusal(path, f"a schema is an object or a boolean, got {type(schema).__name__}")
        check_keywords(schema, path)
        node = {key: value for key, value in schema.items() if key not in ANNOTATIONS and not key.startswith("x-")}
        if "$ref" in node:
            return self.reference(node, path, depth)
        if "allOf" in node:
            return self.all_of(node, path, depth)
        for key in ("anyOf", "oneOf"):
            if key in node:
                return self.one_of(node, key, path, depth)
        return self.plain(node, path)

    def reference(self, node: Schema, path: Path, depth: int) -> Schema:
        target = target_path(node["$ref"], path)
        beside = {key: value for key, value in node.items() if key != "$ref"}
        if beside:
            found = followed(self.root, look_up(self.root, target, path), path)
            if found is True:
                return self.lower(beside, path, depth + 1)
            if found is False:
                return self.lower(False, path)
            return self.lower(merge(found, beside, path), path, depth + 1)
        followed(self.root, node, path)  # refuses circles of nothing but references
        if target not in self.places:
            name = self.places[target] = f"r{len(self.places)}"
            self.definitions[name] = self.lower(look_up(self.root, target, path), target)
        return {"$ref": f"#/$defs/{self.places[target]}"}

    def all_of(self, node: Schema, path: Path, depth: int) -> Schema:
        members = self.branches(node, "allOf", path)
        out: Schema = {key: value for key, value in node.items() if key != "allOf"}
        for member in members:
            found = followed(self.root, member, path)
            if found is False:
                return self.lower(False, path)
            if found is not True:
                out = merge(out, found, path) if out else {k: v for k, v in found.items() if k not in ANNOTATIONS}
        return self.lower(out, path, depth + 1)

    def one_of(self, node: Schema, key: str, path: Path, depth: int) -> Schema:
        """Branches, each with what stands beside them."""
        branches = self.branches(node, key, path)
        beside = {name: value for name, value in node.items() if name != key}
        kept: list[tuple[Any, Path]] = []
        for index, branch in enumerate(branches):
            where = (*path, key, str(index))
            if branch is False:
                continue
            if not beside or branch is True:
                kept.append((beside or True if branch is True else branch, where))
                continue
            found = followed(self.root, branch, where)
            if isinstance(found, dict):
                kept.append((merge(found, beside, where), where))
        if not kept:
            raise refusal(path, f"{key} allows no value", key)
        if key == "oneOf":
            self.require_exclusive([schema for schema, _ in kept], path)
        lowered = [self.lower(schema, where, depth + 1) for schema, where in kept]
        return lowered[0] if len(lowered) == 1 else {"anyOf": lowered}

    def require_exclusive(self, branches: list[Any], path: Path) -> None:
        for index, branch in enumerate(branches):
            for other in range(index):
                if not exclusive(branches[other], branch, lambda schema: followed(self.root, schema, path)):
                    raise refusal(
                        (*path, "oneOf"), f"oneOf: branches {other} and {index} may hold for one value", "oneOf",
                        reason="that exactly one holds is not enforced where more than one may",
                        remedy="use anyOf, or give both a required property with different constants",
                    )  # fmt: skip

    def branches(self, node: Schema, key: str, path: Path) -> list[Any]:
        value = node[key]
        if not isinstance(value, list) or not value:
            raise refusal((*path, key), f"{key} must be a list of at least one schema", key)
        return value

    def plain(self, node: Schema, path: Path) -> Schema:
        """A schema of types and their keywords."""
        types = self.types(node, path)
        if "enum" in node or "const" in node:
            return constants(node, types or TYPES, path)
        if types is None:
            return {}
        lowered = []
        for name in types:
            own = OF_TYPE.get("number" if name == "integer" else name, ())
            lowered.append(self.typed(name, {key: value for key, value in node.items() if key in own}, path))
        return lowered[0] if len(lowered) == 1 else {"anyOf": lowered}

    def typed(self, name: str, node: Schema, path: Path) -> Schema:
        if name == "string":
            strings = string_node(node, path)
            return {"type": "string"} if strings is None else {"type": "string", "pattern": self.hold(strings)}
        if name in ("integer", "number"):
            return number(node, name, path)
        if name == "object":
            return object_schema(node, path, self.lower, self.hold)
        if name == "array":
            return self.array(node, path)
        return {"type": name}

    def hold(self, expression: Node) -> str:
        self.expressions.append(expression)
        return held(len(self.expressions) - 1)

    def types(self, node: Schema, path: Path) -> tuple[str, ...] | None:
        """Names of the types; those that the keywords belong to where none is given; None: no restriction."""
        if "type" not in node:
            if "enum" in node or "const" in node:
                return None
            return tuple(name for name, own in OF_TYPE.items() if any(key in node for key in own)) or None
        value = node["type"]
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not names:
            raise refusal((*path, "type"), "type must be a name or a list of names", "type")
        for name in names:
            if name not in TYPES:
                raise refusal(
                    (*path, "type"), f"unknown type {name!r}", "type",
                    reason=f"types are: {', '.join(TYPES)}", remedy="use one of them",
                )  # fmt: skip
        return tuple(name for name in dict.fromkeys(names) if not (name == "integer" and "number" in names))

    def array(self, node: Schema, path: Path) -> Schema:
        first = node.get("prefixItems", [])
        if not isinstance(first, list):
            raise refusal((*path, "prefixItems"), "prefixItems must be a list of schemas", "prefixItems")
        if "items" in node and "unevaluatedItems" in node:
            raise refusal(path, "items beside unevaluatedItems is not enforced", "items", "unevaluatedItems")
        key = "unevaluatedItems" if "unevaluatedItems" in node else "items"
        if isinstance(node.get(key), list):
            raise refusal((*path, key), "items as a list is not enforced", key, remedy="write prefixItems")
        least, most = count(node, "minItems", path) or 0, count(node, "maxItems", path)
        rest = node.get(key, not first or least > len(first))
        if False in first:  # nothing can stand there: the array ends before it
            end = first.index(False)
            most, first = end if most is None else min(most, end), first[:end]
        if rest is False:
            most = min(len(first) if most is None else most, len(first))
        if most is not None and least > most:
            raise refusal(
                path,
                f"minItems {least} is above the {most} items that are allowed",
                "minItems",
                "maxItems",
                reason=NOTHING_FITS,
            )
        if node.get("uniqueItems", False) is not False and (most is None or most > 1):
            raise refusal((*path, "uniqueItems"), "uniqueItems is not enforced", "uniqueItems")
        if most is not None and most <= len(first):
            first, rest = first[:most], False
        out: Schema = {"type": "array"}
        if first:
            out["prefixItems"] = [self.lower(s, (*path, "prefixItems", str(i))) for i, s in enumerate(first)]
        out["items"] = False if rest is False or most == 0 else self.lower(rest, (*path, key))
        if least:
            out["minItems"] = least
        if most is not None and out["items"] is not False:
            out["maxItems"] = most
        return out
