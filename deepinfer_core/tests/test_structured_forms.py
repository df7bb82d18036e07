"""What may be asked of structured output: every wrong form is refused by name, before anything is queued."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from deepinfer_core.errors import InvalidParameter
from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_core.structured.forms import RESPONSE_FORMATS, SCHEMA_TYPES, StructuredOutput
from deepinfer_core.structured.sizes import MAX_BYTES, MAX_DEPTH, MAX_EXPANDED, measure


def refusal(**fields: object) -> InvalidParameter:
    with pytest.raises(InvalidParameter) as caught:
        SamplingParams(**fields)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "kind", "schema"),
    [
        ({"json_schema": {"type": "integer"}}, "json", '{"type": "integer"}'),
        ({"json_schema": '{"type":"integer"}'}, "json", '{"type":"integer"}'),
        ({"json_schema": {"const": "é"}}, "json", '{"const": "é"}'),
        ({"regex": "a+"}, "regex", "a+"),
        ({"grammar": 'root ::= "a"'}, "ebnf", 'root ::= "a"'),
        ({"json_object": True}, "json_object", ""),
        ({"so_args": {"schema_type": "regex", "schema": "a"}}, "regex", "a"),
        ({"so_args": {"schema_type": "json", "schema": "true"}}, "json", "true"),
        ({"so_args": {"schema_type": "json_object"}}, "json_object", ""),
        ({"so_args": {"schema_type": "structural_tag", "schema": "{}"}}, "structural_tag", "{}"),
        ({"response_format": "json_object"}, "json_object", ""),
        ({"response_format": {"type": "regex", "regex": "a"}}, "regex", "a"),
        ({"response_format": {"type": "grammar", "grammar": "root ::= x"}}, "ebnf", "root ::= x"),
        ({"response_format": {"type": "json_schema", "json_schema": {"type": "null"}}}, "json", '{"type": "null"}'),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "null"}}}},
            "json",
            '{"type": "null"}',
        ),
    ],
)
def test_each_way_to_ask_gives_its_grammar(fields, kind, schema):
    params = SamplingParams(**fields)
    assert params.structured == StructuredOutput(kind, schema)
    assert params.updated({"max_tokens": 3}).structured == params.structured


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"json_object": False},
        {"response_format": None},
        {"response_format": "text"},
        {"response_format": "none"},
        {"response_format": {"type": "text"}},
        {"response_format": {"type": None}},
    ],
)
def test_text_or_nothing_is_no_constraint(fields):
    assert SamplingParams(**fields).structured is None


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("regex", "so_args is 'regex'; allowed: a mapping with schema_type and schema"),
        ({}, f"so_args: schema_type is None; allowed: one of {', '.join(SCHEMA_TYPES)}"),
        ({"schema_type": "xml"}, f"so_args: schema_type is 'xml'; allowed: one of {', '.join(SCHEMA_TYPES)}"),
        ({"schema_type": ["json"]}, f"so_args: schema_type is ['json']; allowed: one of {', '.join(SCHEMA_TYPES)}"),
        ({"schema_type": "regex"}, "so_args: schema is None; allowed: a text"),
        ({"schema_type": "regex", "schema": ""}, "so_args: schema is ''; allowed: a text that is not empty"),
        ({"schema_type": "regex", "schema": b"a"}, "so_args: schema is b'a'; allowed: a text"),
        ({"schema_type": "json", "schema": {"type": "null"}}, "so_args: schema is {'type': 'null'}; allowed: a text"),
        (
            {"schema_type": "json_object", "schema": "{}"},
            "so_args: schema is '{}'; allowed: left out for json_object",
        ),
        ({"schema_type": "json", "schema": "{"}, "so_args: schema is not JSON"),
        ({"schema_type": "json", "schema": "3"}, "so_args: schema is JSON of a int"),
    ],
)
def test_malformed_so_args_are_refused_by_name(value, what):
    assert refusal(so_args=value).what.startswith(what)


@pytest.mark.parametrize("key", ["serialized", "bound_token_ids", "schemas"])
def test_so_args_with_an_unknown_key_are_refused(key):
    error = refusal(so_args={"schema_type": "regex", "schema": "a", key: 1})
    assert error.what.startswith(f"so_args has the key {key!r}, which is not allowed")
    assert error.remedy == "known keys: schema_type, schema, trigger_token_ids, bound_token_id"


@pytest.mark.parametrize("ids", ["12", [True], [-1], [1.0], [2**31], 7, [None], [np.array([1, 2])]])
def test_trigger_that_is_no_list_of_ids_is_refused(ids):
    error = refusal(so_args={"schema_type": "regex", "schema": "a", "trigger_token_ids": ids})
    assert error.what.startswith("so_args: trigger_token_ids is ")


@pytest.mark.parametrize("bound", [True, -1, "3", 2.0, [3]])
def test_bound_that_is_no_id_is_refused(bound):
    so_args = {"schema_type": "regex", "schema": "a", "trigger_token_ids": [1], "bound_token_id": bound}
    assert refusal(so_args=so_args).what.startswith("so_args: bound_token_id is ")


@pytest.mark.parametrize("trigger", [None, []])
def test_bound_without_a_trigger_is_refused(trigger):
    so_args = {"schema_type": "regex", "schema": "a", "trigger_token_ids": trigger, "bound_token_id": 3}
    assert refusal(so_args=so_args).what.endswith("left out, or together with non-empty trigger_token_ids")


def test_trigger_and_bound_are_kept():
    so_args = {"schema_type": "regex", "schema": "a", "trigger_token_ids": np.array([3, 3]), "bound_token_id": 0}
    asked = SamplingParams(so_args=so_args).structured
    assert asked == StructuredOutput("regex", "a", (3, 3), 0)
    assert SamplingParams(so_args=asked.as_record()).structured == asked
    assert asked.for_engine() == {"schema_type": "regex", "schema": "a"}


@pytest.mark.parametrize(
    ("trigger", "bound", "name"), [([300], None, "trigger_token_ids"), ([1], 300, "bound_token_id")]
)
def test_trigger_and_bound_are_checked_against_the_vocabulary(trigger, bound, name):
    so_args = {"schema_type": "regex", "schema": "a", "trigger_token_ids": trigger, "bound_token_id": bound}
    params = SamplingParams(so_args=so_args)
    params.check_vocabulary(301)
    with pytest.raises(InvalidParameter, match=f"so_args: {name} is 300; allowed: token ids from 0 to 299"):
        params.check_vocabulary(300)


def test_two_grammars_are_refused():
    error = refusal(regex="a", json_object=True)
    assert str(error) == (
        "E_PARAM: regex and json_object are given together\n"
        "  reason: an answer has one grammar\n"
        "  remedy: give one of them"
    )


def test_update_with_another_grammar_takes_the_place_of_the_first():
    params = SamplingParams(regex="a")
    assert params.updated({"json_object": True}).structured == StructuredOutput("json_object", "")
    assert params.updated({"response_format": "text"}).structured is None
    assert params.updated({"top_k": 3}).structured == StructuredOutput("regex", "a")
    with pytest.raises(InvalidParameter, match="are given together"):
        params.updated({"json_object": True, "grammar": "root ::= x"})


def test_ignore_eos_with_a_grammar_is_refused():
    assert refusal(regex="a", ignore_eos=True).what == (
        "ignore_eos is True; allowed: false with structured output, whose end is an end token"
    )


@pytest.mark.parametrize("kind", ["json", "xml", 3, True, ["text"], "TEXT"])
def test_unknown_response_format_lists_the_known_ones(kind):
    allowed = "one of " + ", ".join(RESPONSE_FORMATS)
    for value in (kind, {"type": kind}):
        assert refusal(response_format=value).what == f"response_format: type is {kind!r}; allowed: {allowed}"


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"type": "text", "schema": 1},
        {"type": "json_object", "json_schema": {}},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"schema": {}, "strict": False}},
        {"type": "regex", "pattern": "a"},
    ],
)
def test_response_format_that_would_be_read_in_part_is_refused(value):
    assert refusal(response_format=value).details["field"].startswith("response_format")


@pytest.mark.parametrize("value", [3, True, [1], b"{}"])
def test_json_schema_that_is_no_object_is_refused(value):
    assert refusal(json_schema=value).what.startswith("json_schema is ")


def test_json_schema_that_is_no_json_is_refused():
    loop: dict[str, object] = {}
    loop["not"] = loop
    assert refusal(json_schema=loop).what == "json_schema is no JSON value"
    assert refusal(json_schema={"const": float("nan")}).what == "json_schema is no JSON value"
    assert refusal(json_schema={"const": {1, 2}}).what == "json_schema is no JSON value"
    assert refusal(regex="\ud800").what == "regex is not UTF-8 (character 0)"


@pytest.mark.parametrize("name", ["regex", "grammar", "json_schema"])
def test_long_schema_is_refused_by_its_bytes(name):
    text = json.dumps({"const": "x" * (MAX_BYTES - 13)}, ensure_ascii=False)
    assert len(text) == MAX_BYTES
    if name == "json_schema":
        SamplingParams(json_schema=text)
    error = refusal(**{name: "é" * (MAX_BYTES // 2 + 1)})
    assert error.what == f"{name} has {MAX_BYTES + 2} bytes; at most {MAX_BYTES} are allowed"


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 5_000, 200_000])
def test_deeply_nested_schema_is_refused(depth):
    assert "nests" in refusal(json_schema="[" * depth + "]" * depth).what
    assert f"nests {depth} groups" in refusal(regex="(" * depth + "a" + ")" * depth).what


def test_schema_nested_up_to_the_limit_is_taken():
    SamplingParams(json_schema='{"a":' * (MAX_DEPTH - 1) + "{}" + "}" * (MAX_DEPTH - 1))
    SamplingParams(regex="(" * MAX_DEPTH + "a" + ")" * MAX_DEPTH)


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("abc", 3),
        ("a{3}", 3),
        ("a{2,5}b", 6),
        ("a{2,}", 2),
        ("(ab){4}", 8),
        ("((a{10}){10}){10}", 1000),
        ("(a{10}|b){10}c", 111),
        (r"\p{L}{5}", 5),
        (r"\x{41}{2}", 2),
        (r"[a{9}]{3}", 3),
        (r"[^]{9}]{3}", 3),
        (r"\{9}", 3),
        ("a{x}", 3),
        ("a*b+c?", 3),
        ("(ab", 2),
        ("{5}", 0),
        ("a{" + "9" * 80 + "}", 10**9),
        ("a{,5}", 4),
    ],
)
def test_measure_writes_repetitions_out(pattern, size):
    assert measure(pattern, quotes=False).size == size


def test_measure_of_a_grammar_leaves_literals_and_comments_alone():
    assert measure('root ::= "a{9}" x{3} # y{99}\n', quotes=True).size == len("root::=") + 5 + 3


@pytest.mark.parametrize(
    "pattern", ["a{65537}", "((a{100}){100}){7}", "(a{0,70000})?", "(((((a{40}){40}){40}){40}){40})"]
)
def test_regex_that_stands_for_a_huge_automaton_is_refused(pattern):
    start = time.perf_counter()
    error = refusal(regex=pattern)
    assert f"at most {MAX_EXPANDED} are allowed" in error.what
    assert time.perf_counter() - start < 1
    SamplingParams(regex="a{65536}")
