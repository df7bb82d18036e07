"""Grammars of each kind, and how a finished text is judged without any grammar engine."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from attrs import field, frozen

from deepinfer_core.conformance.failures import fail, require

KINDS = ("json", "regex", "ebnf", "structural_tag", "json_object")
Judge = Callable[[str], None]


@frozen
class Case:
    """A grammar: what it must hold and must not hold, and a judge of any text that it allows."""

    kind: str
    schema: str
    judge: Judge
    holds: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    knows_end: Callable[[str], bool] | None = None
    """Whether a text may end; None where only a finished text can be judged."""
    is_utf8: bool = True
    """False where free text may be any bytes."""

    @property
    def so_args(self) -> Mapping[str, str]:
        return {"schema_type": self.kind, "schema": self.schema}

    @property
    def name(self) -> str:
        return f"{self.kind} {self.schema}"


def regex(pattern: str, holds: tuple[str, ...] = (), lacks: tuple[str, ...] = ()) -> Case:
    compiled = re.compile(pattern)

    def judge(text: str) -> None:
        require(
            compiled.fullmatch(text), "a finished text does not match its regular expression", pattern=pattern, got=text
        )

    return Case("regex", pattern, judge, holds, lacks, knows_end=lambda text: compiled.fullmatch(text) is not None)


def json_schema(schema: Any, holds: tuple[str, ...] = (), lacks: tuple[str, ...] = ()) -> Case:
    return Case("json", json.dumps(schema), lambda text: judge_json(text, schema), holds, lacks)


def judge_json(text: str, schema: Any) -> None:
    """Fail for what is no JSON, or not valid by ``schema`` (where ``jsonschema`` is installed)."""
    try:
        value = json.loads(text)
    except ValueError as error:
        fail("a finished text is not JSON", got=text, reason=error)
    try:
        import jsonschema  # type: ignore[import-untyped,unused-ignore]  # stubs are a package of their own
    except ModuleNotFoundError:
        return
    errors = [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(value)]
    require(not errors, "a finished text is not valid by its schema", schema=schema, got=text, reason=errors[:1])


def _object(text: str) -> None:
    judge_json(text, {"type": "object"})


def _tagged(text: str) -> None:
    """Free text with calls in it; each call is complete and holds what its schema says."""
    call = re.compile(r"<call>(.*?)</call>", re.S)
    for body in call.findall(text):
        judge_json(body, NUMBER)
    require("<call>" not in call.sub("", text), "a tag was left open at the end", got=text)


NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<call>"],
        "tags": [
            {
                "type": "tag",
                "begin": "<call>",
                "content": {"type": "json_schema", "json_schema": NUMBER},
                "end": "</call>",
            }
        ],
    },
}

CASES: tuple[Case, ...] = (
    regex("a+b", ("ab", "aaaab"), ("a", "b", "aba", "")),
    regex("(yes|no)", ("yes", "no"), ("ye", "yesno", "")),
    regex("[a-c]{2,4}", ("ab", "ccca"), ("a", "abcab")),
    regex(r"\d{4}-\d{2}", ("2024-10",), ("2024-1", "202410")),
    regex("(a|ab)(c|bcd)?", ("a", "abc", "abcd", "ab"), ("abcbcd", "c")),
    regex("[^a]x", ("bx", " x"), ("ax", "x")),
    json_schema(NUMBER, ('{"n": 1}', '{"n": -20}'), ('{"n": "1"}', "{}", '{"n": 1, "m": 2}', '{"n": 1.5}')),
    json_schema(
        {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}, ("[]", "[true, false]"), ("[1]", "[true")
    ),
    json_schema({"enum": ["red", "green", 7]}, ('"red"', "7"), ('"blue"', '"re"', "70")),
    json_schema({"type": "string", "maxLength": 6}, ('""', '"abc"'), ('"abcdefg"', '"', "abc")),
    json_schema(
        {
            "type": "object",
            "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}},
            "required": ["name"],
            "additionalProperties": False,
        },
        ('{"name": "x"}', '{"name": "", "tags": ["a", "b"]}'),
        ('{"tags": []}', '{"name": null}'),
    ),
    json_schema(
        {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 3, "maximum": 12}]},
        ("null", "3", "12"),
        ("2", "13", "nul"),
    ),
    Case(
        "ebnf",
        'root ::= "yes" | "no" | "maybe"',
        lambda text: require(text in ("yes", "no", "maybe"), "a finished text is none of its grammar", got=text),
        ("yes", "maybe"),
        ("may", "yesno", ""),
        knows_end=lambda text: text in ("yes", "no", "maybe"),
    ),
    Case("structural_tag", json.dumps(TAG), _tagged, ('<call>{"n": 4}</call>',), ("<call>{}</call>",), is_utf8=False),
    Case("json_object", "", _object, ("{}", '{"a": [1, null]}'), ("[]", "1", '{"a": }', "")),
)  # fmt: skip


@frozen
class Hostile:
    """What no engine can compile, or need not. ``may_compile``: it is a grammar, if a strange one."""

    name: str
    so_args: Mapping[str, Any] = field(factory=dict)
    may_compile: bool = False


def _hostile(kind: str, name: str, schema: Any, *, may_compile: bool = False) -> Hostile:
    return Hostile(f"{kind}: {name}", {"schema_type": kind, "schema": schema}, may_compile)


HOSTILE: tuple[Hostile, ...] = (
    _hostile("json", "no JSON", "{"),
    _hostile("json", "empty", ""),
    _hostile("json", "a number", "5"),
    _hostile("json", "unknown type", '{"type": "strange"}'),
    _hostile("json", "contradiction", '{"type": "integer", "minimum": 9, "maximum": 3}'),
    _hostile("json", "enum of nothing", '{"enum": []}'),
    _hostile("json", "false", "false"),
    _hostile("json", "reference to nowhere", '{"$ref": "#/$defs/none"}'),
    _hostile("json", "reference to itself", '{"$ref": "#"}'),
    _hostile("json", "broken pattern", '{"type": "string", "pattern": "("}'),
    _hostile("json", "properties are a list", '{"type": "object", "properties": []}'),
    _hostile("json", "negative length", '{"type": "string", "minLength": -1}'),
    _hostile("json", "half of a surrogate pair", '{"enum": ["\ud800"]}'),
    _hostile("json", "nested 5000 deep", '{"items":' * 5000 + "{}" + "}" * 5000, may_compile=True),
    _hostile("regex", "open group", "(a"),
    _hostile("regex", "open class", "[a"),
    _hostile("regex", "nothing to repeat", "*a"),
    _hostile("regex", "reversed bounds", "a{3,2}"),
    _hostile("regex", "reversed range", "[z-a]"),
    _hostile("regex", "dangling escape", "a\\"),
    _hostile("regex", "back reference", r"(a)\1"),
    _hostile("regex", "look-ahead", "(?=a)b"),
    _hostile("regex", "half of a surrogate pair", "\ud800"),
    _hostile("ebnf", "no root", 'other ::= "a"'),
    _hostile("ebnf", "no grammar", "hello"),
    _hostile("ebnf", "unknown rule", "root ::= other"),
    _hostile("ebnf", "open string", 'root ::= "a'),
    _hostile("structural_tag", "no JSON", "<"),
    _hostile("structural_tag", "another object", '{"a": 1}'),
    _hostile("structural_tag", "unknown format", '{"type": "structural_tag", "format": {"type": "strange"}}'),
    Hostile("unknown schema_type", {"schema_type": "xml", "schema": "<a/>"}),
    Hostile("schema_type of None", {"schema_type": None, "schema": ""}),
    Hostile("schema of None", {"schema_type": "regex", "schema": None}),
    Hostile("schema of bytes", {"schema_type": "regex", "schema": b"a"}),
)

KEYWORDS: tuple[Any, ...] = (
    {"type": "integer", "multipleOf": 5},
    {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 9},
    {"type": "number", "minimum": -1.5, "maximum": 2},
    {"type": "string", "minLength": 2, "maxLength": 4},
    {"type": "string", "pattern": "^[a-c]+$"},
    {"type": "string", "format": "date"},
    {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3},
    {"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "null"}], "items": False},
    {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "maxItems": 2},
    {"type": "array", "contains": {"type": "null"}, "maxItems": 2},
    {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 2},
    {"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": {"type": "null"}},
    {"type": "object", "patternProperties": {"^a+$": {"type": "null"}}, "additionalProperties": False},
    {"type": "object", "propertyNames": {"enum": ["x", "y"]}, "additionalProperties": {"type": "boolean"}},
    {
        "type": "object",
        "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
        "dependentRequired": {"a": ["b"]},
        "additionalProperties": False,
    },
    {"allOf": [{"type": "integer", "minimum": 1}, {"maximum": 5}]},
    {"oneOf": [{"type": "integer", "maximum": 3}, {"type": "integer", "minimum": 2, "maximum": 6}]},
    {"not": {"type": "string"}, "type": ["string", "null"]},
    {"if": {"type": "integer"}, "then": {"minimum": 5, "maximum": 8}, "else": {"type": "null"}},
    {"const": {"a": [1, "x"]}},
    {
        "$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "additionalProperties": False}},
        "$ref": "#/$defs/n",
    },
    {"type": "string", "contentEncoding": "base64", "maxLength": 4},
    {"type": "object", "properties": {"a": {"type": "null"}}, "unevaluatedProperties": False},
)  # fmt: skip
"""A schema for each keyword: an engine enforces it, or refuses it. It never leaves it out."""
