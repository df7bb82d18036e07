"""Structural tags: free text with constrained parts. The parts are checked as if they stood alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from deepinfer_core.errors import InvalidParameter
from deepinfer_samplers.grammars import ebnf, json_schema
from deepinfer_samplers.grammars.grammar_text import regex_grammar
from deepinfer_samplers.grammars.json_schema import MAX_BYTES, Lowered

MAX_DEPTH = 32
FORMATS = (
    "const_string", "json_schema", "any_text", "grammar", "regex", "sequence", "or", "tag", "triggered_tags",
    "tags_with_separator", "optional", "plus", "star", "repeat",
)  # fmt: skip
# Fields that hold further formats.
_INNER = ("format", "content", "elements", "tags")


def lowered(text: str, schema_grammar: Callable[[Lowered], str]) -> str:
    """The tag ``text`` with its schemas and expressions as grammars; ``schema_grammar`` makes that of a schema.

    Raises InvalidParameter for what is malformed, of a kind that was not tested, or holds a part that is not enforced.
    """
    if len(text) > MAX_BYTES:
        raise InvalidParameter(f"the structural tag has more than {MAX_BYTES:,} bytes", remedy="write a smaller one")
    try:
        tag = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise InvalidParameter("the structural tag is no JSON", reason=str(err), remedy="repair it") from None
    if not isinstance(tag, dict) or not isinstance(tag.get("format"), dict):
        raise InvalidParameter(
            "a structural tag is an object with a 'format'", remedy='write {"type": "structural_tag", "format": {...}}'
        )
    return json.dumps({**tag, "format": _format(tag["format"], schema_grammar, 0)}, ensure_ascii=False)


def _format(node: Any, schema_grammar: Callable[[Lowered], str], depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise InvalidParameter(f"the structural tag is nested more than {MAX_DEPTH} deep", remedy="flatten it")
    if not isinstance(node, dict):
        raise InvalidParameter(f"a format of a structural tag is an object, got {node!r}", remedy="repair it")
    kind = node.get("type")
    if kind not in FORMATS:
        raise InvalidParameter(
            f"unknown format {kind!r} in a structural tag", reason=f"known are: {', '.join(FORMATS)}", remedy="use one"
        )
    out = dict(node)
    if kind == "json_schema":
        if node.get("style", "json") != "json" or node.get("any_order", False) is not False:
            raise InvalidParameter(
                "a schema in a structural tag is enforced in style 'json' and in the order of its properties only",
                remedy="leave out style and any_order",
            )
        return {"type": "grammar", "grammar": schema_grammar(json_schema.lower(node.get("json_schema")))}
    if kind == "regex":
        return {"type": "grammar", "grammar": regex_grammar(str(node.get("pattern", "")))}
    if kind == "grammar":
        ebnf.check(str(node.get("grammar", "")))
    for key in _INNER:
        if isinstance(out.get(key), list):
            out[key] = [_format(item, schema_grammar, depth + 1) for item in out[key]]
        elif key in out:
            out[key] = _format(out[key], schema_grammar, depth + 1)
    return out
