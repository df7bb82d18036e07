"""References within a schema: JSON pointers, resolved here because the compiler knows no escapes in them."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from deepinfer_samplers.grammars.schema_keywords import ANNOTATIONS, refusal

Path = tuple[str, ...]


def target_path(reference: Any, path: Path) -> Path:
    """The place that ``reference`` names. Raises InvalidParameter for what is no pointer into this schema."""
    where = (*path, "$ref")
    if not isinstance(reference, str):
        raise refusal(where, f"$ref must be a string, got {reference!r}", "$ref")
    if reference in ("#", ""):
        return ()
    if not reference.startswith("#/"):
        raise refusal(
            where, f"$ref {reference!r} leaves the schema", "$ref",
            reason="nothing is fetched, and no name is looked up",
            remedy="copy the schema under $defs and refer to '#/$defs/NAME'",
        )  # fmt: skip
    parts = unquote(reference[2:]).split("/")
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in parts)


def look_up(root: Any, target: Path, path: Path) -> Any:
    """The schema at ``target``."""
    found = root
    for part in target:
        if isinstance(found, dict) and part in found:
            found = found[part]
        elif isinstance(found, list) and part.isdigit() and int(part) < len(found):
            found = found[int(part)]
        else:
            raise refusal((*path, "$ref"), f"$ref names {part!r}, which is not there", "$ref",
                          remedy="repair the reference, or add what it names")  # fmt: skip
    if not isinstance(found, (dict, bool)):
        raise refusal((*path, "$ref"), "$ref names something that is no schema", "$ref")
    return found


def followed(root: Any, schema: Any, path: Path) -> Any:
    """What a schema is that consists of a reference to another one; circles are refused."""
    seen: set[Path] = set()
    while (
        isinstance(schema, dict) and "$ref" in schema and not any(k not in ANNOTATIONS for k in schema if k != "$ref")
    ):
        target = target_path(schema["$ref"], path)
        if target in seen:
            raise circular(path)
        seen.add(target)
        schema = look_up(root, target, path)
    return schema


def circular(path: Path) -> Exception:
    """The error for a reference that leads back to itself."""
    return refusal(path, "a circular reference: no finite value satisfies it", "$ref", reason="it needs itself to end",
                   remedy="make one of the references on the way optional, or one of several under anyOf")  # fmt: skip


def endless(definitions: dict[str, Any], root: Any) -> set[str]:
    """Definitions of a lowered schema that no finite value satisfies; ``""`` stands for ``root`` itself."""
    schemas = {**definitions, "": root}
    ending: set[str] = set()
    while True:
        more = {name for name, schema in schemas.items() if name not in ending and _ends(schema, ending)}
        if not more:
            return set(schemas) - ending
        ending |= more


def _ends(schema: Any, ending: set[str]) -> bool:
    """Whether some value of ``schema`` needs only definitions that are known to end."""
    if "$ref" in schema:
        return schema["$ref"].removeprefix("#/$defs/") in ending
    if "anyOf" in schema:
        return any(_ends(branch, ending) for branch in schema["anyOf"])
    if schema.get("type") == "object":
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        spare = [s for name, s in properties.items() if name not in required]
        spare += [*schema.get("patternProperties", {}).values()]
        spare += [s for s in [schema.get("additionalProperties")] if isinstance(s, dict)]
        enough = schema.get("minProperties", 0) - len(required) <= 0 or any(_ends(s, ending) for s in spare)
        return enough and all(_ends(properties[name], ending) for name in required)
    if schema.get("type") == "array":
        least = schema.get("minItems", 0)
        needed = [*schema.get("prefixItems", ())][:least]
        if least > len(needed):
            needed.append(schema.get("items", {}))
        return all(_ends(item, ending) for item in needed)
    return True
