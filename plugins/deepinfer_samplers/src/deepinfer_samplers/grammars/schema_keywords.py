"""What each keyword of a JSON schema becomes here. The tables of the reference page are generated from these."""

from __future__ import annotations

from difflib import get_close_matches

from deepinfer_core.errors import InvalidParameter

ANNOTATIONS: dict[str, str] = dict.fromkeys(
    (
        "title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$comment",
        "$schema", "$id", "$defs", "definitions", "$vocabulary",
    ),
    "says nothing about the value",
)  # fmt: skip

ENFORCED: dict[str, str] = {
    "type": "one name or a list; absent, it follows from the other keywords",
    "enum": "only with `type` and `const` beside it, which thin it out; whole numbers within 64 bits",
    "const": "as `enum`",
    "minLength": "with `pattern` or `format` only where it follows from them, or the pattern is one repeated set",
    "maxLength": "as `minLength`",
    "pattern": "found anywhere unless anchored; the dialect below; no character that JSON escapes",
    "format": "the formats below",
    "minimum": "numbers are written without exponent once bounded",
    "maximum": "as `minimum`",
    "exclusiveMinimum": "as `minimum`",
    "exclusiveMaximum": "as `minimum`",
    "multipleOf": "integers: whole, at most 1024; with bounds at most 1000 values",
    "properties": "written in the order of the schema",
    "required": "names without a schema of their own take the one for other names",
    "additionalProperties": "absent beside `properties`: no others",
    "unevaluatedProperties": "as `additionalProperties`",
    "patternProperties": "one pattern; it must not match a name under `properties`, and no other names appear",
    "propertyNames": "without `patternProperties`; with `properties` it must hold for their names",
    "minProperties": "above 1 only where names cannot repeat: without open names",
    "maxProperties": "",
    "prefixItems": "",
    "items": "absent behind `prefixItems`: no more items",
    "unevaluatedItems": "as `items`",
    "minItems": "",
    "maxItems": "",
    "uniqueItems": "only where at most one item is allowed",
    "anyOf": "keywords beside it are merged into every branch",
    "oneOf": "branches must exclude each other visibly: by type, by constants, or by a required property",
    "allOf": "members are merged; where two say something of one thing that cannot be merged, refused",
    "$ref": "within the schema, by JSON pointer; keywords beside it are merged",
}

REFUSED: dict[str, str] = {
    "not": "a grammar cannot exclude",
    "if": "a grammar cannot depend on what was written",
    "then": "a grammar cannot depend on what was written",
    "else": "a grammar cannot depend on what was written",
    "contains": "the compiler drops it",
    "minContains": "the compiler drops it",
    "maxContains": "the compiler drops it",
    "dependentRequired": "the compiler drops it",
    "dependentSchemas": "the compiler drops it",
    "dependencies": "the compiler drops it",
    "additionalItems": "the compiler drops it; `items` behind `prefixItems` says the same",
    "contentEncoding": "the compiler drops it",
    "contentMediaType": "the compiler drops it",
    "contentSchema": "the compiler drops it",
    "$anchor": "the compiler does not resolve it",
    "$dynamicRef": "the compiler does not resolve it",
    "$dynamicAnchor": "the compiler does not resolve it",
    "$recursiveRef": "the compiler does not resolve it",
    "$recursiveAnchor": "the compiler does not resolve it",
    "nullable": 'it belongs to OpenAPI; `type: [..., "null"]` says the same',
    "discriminator": "it belongs to OpenAPI; `oneOf` with a constant in each branch says the same",
}

OF_TYPE: dict[str, tuple[str, ...]] = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "object": (
        "properties", "required", "additionalProperties", "unevaluatedProperties", "patternProperties",
        "propertyNames", "minProperties", "maxProperties",
    ),
    "array": ("prefixItems", "items", "unevaluatedItems", "minItems", "maxItems", "uniqueItems"),
}  # fmt: skip
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


def pointer(path: tuple[str, ...]) -> str:
    """``path`` as a JSON pointer behind ``#``."""
    return "#" + "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in path)


NOTHING_FITS = "no value satisfies both"


def refusal(path: tuple[str, ...], what: str, *keywords: str, reason: str = "", remedy: str = "") -> InvalidParameter:
    """The error for a place of a schema that cannot be enforced as it stands."""
    where = pointer(path)
    return InvalidParameter(
        f"the schema at {where}: {what}",
        reason=reason or "a constraint that would be dropped is refused",
        remedy=remedy or "change the schema there; docs/reference/structured-output.md lists what is enforced",
        details={"path": where, "keywords": list(keywords)},
    )


def check_keywords(node: dict[str, object], path: tuple[str, ...]) -> None:
    """Refuse every keyword that is not enforced and is no annotation."""
    for key in node:
        if key in ENFORCED or key in ANNOTATIONS or key.startswith("x-"):
            continue
        if key in REFUSED:
            raise refusal((*path, key), f"{key} is not enforced", key, reason=REFUSED[key].replace("`", ""))
        near = get_close_matches(key, (*ENFORCED, *REFUSED), n=1)
        raise refusal(
            (*path, key),
            f"unknown keyword {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
            key,
            reason="what is not known cannot be enforced",
            remedy="remove it, or begin its name with 'x-' if it is a note",
        )
