"""What the compiler drops or misreads is refused with keyword and place; what it needs told differently is told so."""

from __future__ import annotations

import json

import pytest
from structured_walk import ByteTokenizer, holds

from deepinfer_core.errors import InvalidParameter
from deepinfer_samplers.grammars.json_schema import lowered
from deepinfer_samplers.grammars.schema_keywords import ANNOTATIONS, ENFORCED, REFUSED

AB = {"a": {"type": "integer"}, "b": {"type": "integer"}}
STRINGS = {"type": "string"}
# JSON Schema 2020-12: core, applicator, unevaluated, validation, meta-data, format, content.
STANDARD = """
$schema $id $ref $defs $comment $anchor $dynamicRef $dynamicAnchor $vocabulary allOf anyOf oneOf not if then else
dependentSchemas prefixItems items contains properties patternProperties additionalProperties propertyNames
unevaluatedItems unevaluatedProperties type enum const multipleOf maximum exclusiveMaximum minimum exclusiveMinimum
maxLength minLength pattern maxItems minItems uniqueItems maxContains minContains maxProperties minProperties
required dependentRequired title description default deprecated readOnly writeOnly examples format contentEncoding
contentMediaType contentSchema
"""


@pytest.mark.parametrize(
    ("schema", "path", "keywords"),
    [
        ({**STRINGS, "pattern": "^(ab)+$", "maxLength": 3}, "#", ["pattern", "maxLength"]),
        ({**STRINGS, "pattern": "^a|bc$", "minLength": 2}, "#", ["pattern", "minLength"]),
        ({**STRINGS, "format": "date", "maxLength": 3}, "#", ["format", "maxLength"]),
        ({**STRINGS, "format": "date", "pattern": "^a$"}, "#", ["format", "pattern"]),
        ({**STRINGS, "format": "iri"}, "#/format", ["format"]),
        ({**STRINGS, "pattern": '^"$'}, "#/pattern", ["pattern"]),
        ({**STRINGS, "pattern": "(?=a)b"}, "#/pattern", ["pattern"]),
        ({**STRINGS, "minLength": 4, "maxLength": 3}, "#", ["minLength", "maxLength"]),
        ({"type": "number", "multipleOf": 0.01}, "#/multipleOf", ["multipleOf"]),
        ({"type": "integer", "multipleOf": 3, "minimum": 4}, "#", ["minimum", "multipleOf"]),
        ({"type": "integer", "multipleOf": 1025}, "#/multipleOf", ["multipleOf"]),
        ({"type": "number", "minimum": 1e-9}, "#/minimum", ["minimum"]),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "#", ["minimum", "maximum"]),
        ({"type": "array", "items": True, "uniqueItems": True}, "#/uniqueItems", ["uniqueItems"]),
        ({"type": "array", "contains": {}}, "#/contains", ["contains"]),
        ({"type": "array", "items": [{}]}, "#/items", ["items"]),
        ({"type": "array", "items": {}, "minItems": 3, "maxItems": 1}, "#", ["minItems", "maxItems"]),
        ({"properties": {"p/q": {"items": {"not": {}}}}}, "#/properties/p~1q/items/not", ["not"]),
        ({"if": {}, "then": {}}, "#/if", ["if"]),
        ({"properties": AB, "dependentRequired": {"a": ["b"]}}, "#/dependentRequired", ["dependentRequired"]),
        ({"properties": AB, "dependentSchemas": {"a": {}}}, "#/dependentSchemas", ["dependentSchemas"]),
        ({"properties": AB, "patternProperties": {"^a": {}}}, "#/patternProperties/^a",
         ["patternProperties", "properties"]),
        ({"patternProperties": {"a": {}, "b": {}}}, "#/patternProperties", ["patternProperties"]),
        ({"properties": AB, "required": ["a"], "propertyNames": {"pattern": "^b$"}}, "#/propertyNames",
         ["propertyNames"]),
        ({"properties": AB, "additionalProperties": False, "required": ["c"]}, "#/required",
         ["required", "additionalProperties"]),
        ({"additionalProperties": {"type": "integer"}, "minProperties": 2}, "#/minProperties", ["minProperties"]),
        ({"properties": {"a": False}, "required": ["a"]}, "#/properties/a", ["required", "properties"]),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "#/oneOf", ["oneOf"]),
        ({"oneOf": [{"minLength": 2}, {"type": "integer"}]}, "#/oneOf", ["oneOf"]),
        ({"anyOf": [False]}, "#", ["anyOf"]),
        ({"allOf": [{**STRINGS, "pattern": "a"}, {"pattern": "b"}]}, "#", ["pattern", "allOf"]),
        ({"type": "integer", "anyOf": [STRINGS]}, "#/anyOf/0", ["type"]),
        ({"$ref": "https://example.org/x"}, "#/$ref", ["$ref"]),
        ({"$ref": "#name"}, "#/$ref", ["$ref"]),
        ({"$ref": "#/$defs/x"}, "#/$ref", ["$ref"]),
        ({"$ref": "#"}, "#", ["$ref"]),
        ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "#", ["$ref"]),
        ({"enum": []}, "#/enum", ["enum"]),
        ({"type": "integer", "enum": ["a"]}, "#", ["enum", "const", "type"]),
        ({"enum": ["a", "abc"], "minLength": 2}, "#", ["minLength", "enum"]),
        ({"const": 2**63}, "#", ["enum", "const"]),
        ({"type": "wat"}, "#/type", ["type"]),
        ({**STRINGS, "minLenght": 3}, "#/minLenght", ["minLenght"]),
        ({**STRINGS, "minLength": "3"}, "#/minLength", ["minLength"]),
        ({"type": "integer", "nullable": True}, "#/nullable", ["nullable"]),
    ],
)  # fmt: skip
def test_schema_that_cannot_be_enforced_is_refused_by_place_and_keywords(schema, path, keywords):
    with pytest.raises(InvalidParameter) as caught:
        lowered(json.dumps(schema))
    assert (caught.value.details["path"], caught.value.details["keywords"]) == (path, keywords)
    assert path in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize("keyword", sorted(REFUSED))
def test_keyword_that_the_compiler_drops_is_refused_by_name(keyword):
    with pytest.raises(InvalidParameter) as caught:
        lowered(json.dumps({"type": "object", "properties": {"x": {"type": "integer", keyword: 1}}}))
    assert caught.value.details == {"path": f"#/properties/x/{keyword}", "keywords": [keyword]}


def test_every_keyword_of_the_standard_is_decided():
    decided = [key for key in STANDARD.split() if (key in ANNOTATIONS) + (key in ENFORCED) + (key in REFUSED) != 1]
    assert decided == []


def test_schema_that_is_no_json_or_nested_too_deeply_is_refused():
    deep = {}
    for _ in range(200):
        deep = {"type": "array", "items": deep}
    for text in ('{"type": ', '{"const": NaN}', "[" * 100_000, json.dumps(deep), '{"type": "x' + "x" * 2**20 + '"}'):
        with pytest.raises(InvalidParameter):
            lowered(text)


@pytest.mark.parametrize(
    ("schema", "inside", "outside"),
    [
        ({**STRINGS, "pattern": "^[a-z]+$", "maxLength": 3}, ['"a"', '"abc"'], ['"abcd"', '""', '"abcdef"']),
        ({**STRINGS, "minLength": 2}, ['"ab"', '"日本"', '"😀😀"'], ['"a"', '"\t\t"', '"\u0001a"', '"😀"']),
        ({**STRINGS, "pattern": "^a|b$"}, ['"a"', '"ax"', '"xb"'], ['"xa"', '"bx"']),
        ({**STRINGS, "pattern": "^(?:x|x{0,2})$"}, ['"xx"'], ['"xxx"']),
        ({"type": "number", "minimum": 0.1, "maximum": 0.3}, ["0.1", "0.25", "0.30"], ["0.31", "1e-1", "0.09"]),
        ({"type": "integer", "multipleOf": 7, "minimum": 8, "maximum": 30}, ["14", "28"], ["7", "8", "35"]),
        ({"required": ["a"]}, ['{"a": [1]}'], ["{}", '{"b": 1}', '{"a": 1, "b": 2}']),
        ({"properties": AB, "additionalProperties": STRINGS}, ['{"a": 1, "c": "x"}', '{"ab": "x"}'],
         ['{"a": "x"}', '{"\\u0061": "x"}', '{"a": 1, "a": "x"}', '{"c": 1}']),
        ({"properties": AB, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, ['{"a": 1}', '{"b": 1}'],
         ["{}", "1"]),
        ({"allOf": [{"type": "integer", "minimum": 2}, {"maximum": 5}]}, ["2", "5"], ["1", "6", "null"]),
        ({"$ref": "#/$defs/x", "minimum": 3, "$defs": {"x": {"type": "integer"}}}, ["3"], ["2"]),
        ({"enum": ["größe", "ßa", "\xdfe"]}, ['"größe"', '"ßa"'], ['"grö"']),
        ({"type": "string", "enum": ["a", 1]}, ['"a"'], ["1"]),
        ({"const": 'Regex("^Q0Q$")'}, ['"Regex(\\"^Q0Q$\\")"'], ['"a"']),
        ({"type": ["string", "integer"], "minLength": 2, "minimum": 3}, ['"ab"', "3"], ['"a"', "2", "null"]),
    ],
)  # fmt: skip
def test_schema_that_is_lowered_allows_the_right_texts(engine, schema, inside, outside):
    grammar = engine.compile({"schema_type": "json", "schema": json.dumps(schema)})
    tokenizer = ByteTokenizer()
    assert [text for text in inside if not holds(grammar, tokenizer, text)] == []
    assert [text for text in outside if holds(grammar, tokenizer, text)] == []


@pytest.mark.parametrize(
    "schema",
    [{**STRINGS, "minLength": 4, "maxLength": 3}, {"type": "array", "items": STRINGS, "minItems": 2, "maxItems": 1}],
)
def test_bounds_that_exclude_each_other_are_told_as_such(schema):
    with pytest.raises(InvalidParameter) as refused:
        lowered(json.dumps(schema))
    assert refused.value.reason == "no value satisfies both"
