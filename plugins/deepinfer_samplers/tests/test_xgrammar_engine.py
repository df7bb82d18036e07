"""The engine itself: masks over the whole width of the logits, what a matcher remembers, and errors that stay alone."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata

import numpy as np
import pytest
from structured_walk import EOS, ByteTokenizer, allowed, holds, walk

from deepinfer_core.errors import InvalidParameter, PluginMissing, VendorImportError
from deepinfer_core.interfaces import Grammar, GrammarEngine, Matcher
from deepinfer_samplers.grammar_plugin import CACHE_BYTES, deepinfer_grammar_create
from deepinfer_samplers.grammars import library

SEED = 20261129
TOKENIZER = ByteTokenizer()


def make(tokenizer, width):
    if importlib.util.find_spec("xgrammar") is None:  # importing it by itself wants transformers
        pytest.skip("structured output is not installed: requirements-xgrammar.txt")
    return deepinfer_grammar_create("xgrammar", tokenizer, width)


def regex(engine, pattern):
    return engine.compile({"schema_type": "regex", "schema": pattern})


def test_engine_grammar_and_matcher_are_what_the_core_asks_for(engine):
    grammar = regex(engine, "ab")
    assert isinstance(engine, GrammarEngine)
    assert isinstance(grammar, Grammar)
    assert isinstance(grammar.matcher(), Matcher)
    assert grammar.nbytes > 0


@pytest.mark.parametrize("vocabulary", [300, 301, 319, 320])
@pytest.mark.parametrize("head", [320, 384])
def test_grammar_that_leaves_one_token_allows_that_token_of_the_whole_head(vocabulary, head):
    engine = make(ByteTokenizer(vocabulary), head)
    matcher = regex(engine, "q").matcher()
    mask = np.full(head // 32, -1, np.int32)  # what an earlier step left there
    matcher.fill(mask)
    assert np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist() == [ord("q")]
    assert [t for t in range(head) if regex(engine, "q").matcher().accept(t)] == [ord("q")]
    assert matcher.accept(ord("q"))
    assert allowed(matcher, head).tolist() == [EOS]


@pytest.mark.parametrize("width", [300, 301, 319, 320, 352])
def test_grammar_that_allows_every_text_leaves_out_what_has_no_text(width):
    tokenizer = ByteTokenizer(min(width, 320))
    matcher = regex(make(tokenizer, width), r"[\s\S]*").matcher()
    ids = allowed(matcher, width)
    assert EOS in ids
    assert all(i == EOS or tokenizer.token_bytes[i] for i in ids)
    assert not any(matcher.accept(i) for i in (*range(len(tokenizer.token_bytes), width + 40), -1))


def test_matcher_fed_with_drafts_equals_one_fed_with_emitted_tokens(engine):
    grammar, width = regex(engine, "a(b|c)d"), TOKENIZER.size
    emitted = [ord("a"), ord("c"), ord("d")]
    drafts = [  # one that breaks at each depth, and one that runs past the end
        [
            [ord("b"), ord("c"), ord("d")],
            [ord("a"), ord("d"), ord("d")],
            [ord("a"), ord("b"), ord("b")],
            [*b"acd", EOS],
        ],
        [[ord("d")], [ord("b"), ord("a")], [ord("b"), ord("d"), EOS], [ord("c"), ord("d"), EOS, EOS]],
        [[ord("a")], [ord("d"), ord("d")], [ord("d"), EOS, ord("a")]],
    ]
    matcher, alone = grammar.matcher(), grammar.matcher()
    for token, proposals in zip(emitted, drafts, strict=True):
        for draft in proposals:
            taken = 0
            while taken < len(draft) and matcher.accept(draft[taken]):
                taken += 1
            matcher.rollback(taken)
            assert allowed(matcher, width).tolist() == allowed(alone, width).tolist()
        assert matcher.accept(token)
        assert alone.accept(token)
        assert allowed(matcher, width).tolist() == allowed(alone, width).tolist()
    assert matcher.accept(EOS)
    assert matcher.finished()
    matcher.rollback(4)
    assert not matcher.finished()
    assert allowed(matcher, width).tolist() == allowed(grammar.matcher(), width).tolist()


def test_nothing_is_accepted_behind_the_end_token(engine):
    matcher = regex(engine, "a*").matcher()
    assert matcher.accept(EOS)
    assert not any(matcher.accept(token) for token in range(TOKENIZER.size))
    assert matcher.finished()


def test_rejected_token_changes_nothing(engine):
    matcher = regex(engine, "ab").matcher()
    assert not matcher.accept(ord("b"))
    assert not matcher.accept(EOS)
    assert matcher.accept(ord("a"))
    matcher.rollback(1)
    assert matcher.accept(ord("a"))


@pytest.mark.parametrize("schema", [{"type": "string"}, {}, {"additionalProperties": True}])
def test_half_a_surrogate_pair_cannot_be_written(engine, schema):
    matcher = engine.compile({"schema_type": "json", "schema": json.dumps(schema)}).matcher()
    opening = b'{"' if "additionalProperties" in schema else b'"'
    assert all(matcher.accept(byte) for byte in (*opening, 0xED))
    assert not set(range(0xA0, 0xC0)) & set(allowed(matcher, TOKENIZER.size))
    assert not matcher.accept(0xA0)
    matcher.rollback(1)
    assert matcher.accept(0xEE)
    assert matcher.accept(0xA0)


def test_white_space_is_bounded_for_a_model_that_likes_it(engine):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for kind, text in (("json", json.dumps(schema)), ("structural_tag", _tag(schema))):
        matcher = engine.compile({"schema_type": kind, "schema": text}).matcher()
        spaces, ended, steps = [ord(c) for c in " \n\t\r"], False, 0
        while not ended and steps < 200:
            ids = allowed(matcher, TOKENIZER.size).tolist()
            token = next((t for t in (*spaces, EOS, ord("}")) if t in ids), ids[0])
            assert matcher.accept(token)
            ended, steps = token == EOS, steps + 1
        assert ended
        assert steps < 40


def _tag(schema):
    return json.dumps({"type": "structural_tag", "format": {"type": "json_schema", "json_schema": schema}})


def test_structural_tag_constrains_its_parts_and_leaves_the_text_free(engine):
    tag = {
        "type": "tag",
        "begin": "<f>",
        "content": {"type": "json_schema", "json_schema": {"type": "integer"}},
        "end": "</f>",
    }
    tags = {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<f"], "tags": [tag]}}
    grammar = engine.compile({"schema_type": "structural_tag", "schema": json.dumps(tags)})
    found = [text for text in ("plain", "a<f>12</f>b", "<f>x</f>", "<f>1") if holds(grammar, TOKENIZER, text)]
    assert found == ["plain", "a<f>12</f>b"]
    expression = {"type": "structural_tag", "format": {"type": "regex", "pattern": "^a|b$"}}
    grammar = engine.compile({"schema_type": "structural_tag", "schema": json.dumps(expression)})
    assert [text for text in ("a", "b", "ax") if holds(grammar, TOKENIZER, text)] == ["a", "b"]


@pytest.mark.parametrize(
    ("tag", "part"),
    [
        ("{", "no JSON"), ("{}", "an object with a 'format'"), ('{"format": {"type": "zzz"}}', "unknown format 'zzz'"),
        (_tag({"not": {}}), "not is not enforced"), ('{"format": {"type": "regex", "pattern": "(?=a)"}}', "look-ahead"),
        ('{"format": {"type": "json_schema", "json_schema": {}, "style": "qwen_xml"}}', "in style 'json'"),
        ('{"format": {"type": "grammar", "grammar": "root ::= root"}}', "circular reference"),
        ('{"format": {"type": "sequence", "elements": [1]}}', "is an object, got 1"),
        ('{"format": {"type": "tag", "begin": "a"}}', "cannot be compiled"),
    ],
)  # fmt: skip
def test_structural_tag_that_cannot_be_enforced_is_refused(engine, tag, part):
    with pytest.raises(InvalidParameter) as caught:
        engine.compile({"schema_type": "structural_tag", "schema": tag})
    assert part in str(caught.value)


def test_json_object_is_an_object_of_anything(engine):
    grammar = engine.compile({"schema_type": "json_object", "schema": ""})
    texts = ("{}", '{"a": [1, {"b": null}]}', "[]", "1", '"x"', "")
    assert [text for text in texts if holds(grammar, TOKENIZER, text)] == ["{}", '{"a": [1, {"b": null}]}']
    for seed in range(10):
        found = walk(grammar, TOKENIZER, random.Random(f"{SEED} {seed}"))
        assert not found.finished or isinstance(json.loads(found.text), dict)


def test_grammar_that_cannot_be_compiled_leaves_the_next_one_alone(engine):
    for kind, schema in (
        ("regex", "(a"), ("json", '{"type": "wat"}'), ("json", '{"enum": []}'), ("json", '{"$ref": "#"}'),
        ("ebnf", "root ::= root"),
        ("json", "{"), ("yaml", ""), ("regex", "\ud800"), ("ebnf", 'root ::= "\\ud800"'),
    ):  # fmt: skip
        with pytest.raises(InvalidParameter) as caught:
            engine.compile({"schema_type": kind, "schema": schema})
        assert len(str(caught.value).splitlines()) <= 3
        assert holds(regex(engine, "ok"), TOKENIZER, "ok")


def test_grammar_that_the_vocabulary_cannot_spell_is_refused():
    class Letters(ByteTokenizer):
        @property
        def token_bytes(self):
            return [word if word in (b"a", b"b") else b"" for word in super().token_bytes]

    engine = make(Letters(), TOKENIZER.size)
    assert holds(regex(engine, "ab|c"), TOKENIZER, "ab")
    with pytest.raises(InvalidParameter, match="allows nothing"):
        regex(engine, "c")


def test_tokenizer_without_an_end_token_is_refused():
    class Endless(ByteTokenizer):
        eos_ids = frozenset()

    with pytest.raises(InvalidParameter, match="needs an end token"):
        make(Endless(), TOKENIZER.size)


def test_grammars_of_usual_size_compile_quickly(engine):
    schema = {"properties": {f"field_{i}": {"type": "string", "maxLength": 40} for i in range(60)}}
    begin = time.perf_counter()
    engine.compile({"schema_type": "json", "schema": json.dumps(schema)})
    regex(engine, r"(\w{1,20} ){0,200}\w+")
    engine.compile({"schema_type": "json", "schema": json.dumps({"type": "string", "maxLength": 100_000})})
    took = time.perf_counter() - begin
    print(f"{took:.2f} s")
    assert took < 20  # the limit of a request; about a second here


def test_name_that_is_not_ours_is_refused():
    with pytest.raises(PluginMissing, match="no grammar engine named 'other'"):
        deepinfer_grammar_create("other", TOKENIZER, 320)
    assert CACHE_BYTES > 0


def test_library_that_is_missing_is_an_error_that_names_the_way_without_triton(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(library.metadata, "version", missing)
    with pytest.raises(VendorImportError) as caught:
        library.load()
    assert "requirements-xgrammar.txt" in caught.value.remedy
    assert "--no-deps" in caught.value.remedy
    assert "deepinfer-samplers[xgrammar]" in caught.value.remedy


@pytest.mark.parametrize(
    ("version", "fits"), [("0.2.8", True), ("0.2.11", True), ("0.2.7", False), ("0.3.0", False), ("1.0", False)]
)
def test_library_of_another_version_is_refused(monkeypatch, version, fits):
    monkeypatch.setattr(library.metadata, "version", lambda name: version)
    monkeypatch.setattr(library, "_imported", lambda: (_ for _ in ()).throw(OSError("no such symbol")))
    with pytest.raises(VendorImportError) as caught:
        library.load()
    assert ("tested are" not in str(caught.value)) is fits


def test_library_without_a_name_that_is_used_is_refused(monkeypatch):
    monkeypatch.setattr(library.metadata, "version", lambda name: "0.2.8")
    monkeypatch.setattr(library, "_imported", lambda: type("Other", (), {"GrammarCompiler": object}))
    with pytest.raises(VendorImportError, match=r"lacks .*GrammarMatcher.accept_token"):
        library.load()


def test_library_is_loaded_without_the_packages_that_it_does_not_need(engine):
    assert "triton" not in sys.modules
    assert "transformers" not in sys.modules or hasattr(sys.modules["transformers"], "__path__")  # no stand-in is left


def test_grammars_compiled_by_several_threads_are_those_of_one(engine):
    patterns = [f"{chr(97 + i)}{{{i + 1}}}x?" for i in range(20)]
    with ThreadPoolExecutor(4) as pool:
        grammars = list(pool.map(lambda pattern: regex(engine, pattern), patterns * 2))
    for index, grammar in enumerate(grammars):
        i = index % 20
        assert holds(grammar, TOKENIZER, chr(97 + i) * (i + 1))
        assert not holds(grammar, TOKENIZER, chr(97 + i) * (i + 2))


def test_requests_of_one_grammar_do_not_influence_each_other(engine):
    grammars = [regex(engine, pattern) for pattern in ("ab*c", "[xyz]{3}", "(?:no|on)+")]
    matchers = [grammars[index % 3].matcher() for index in range(8)]
    texts = [b"abbc", b"xyz", b"noonno"]
    alone = [[allowed(m, TOKENIZER.size).tolist()] for m in (grammar.matcher() for grammar in grammars)]
    for text, grammar, seen in zip(texts, grammars, alone, strict=True):
        matcher = grammar.matcher()
        seen += [matcher.accept(byte) and allowed(matcher, TOKENIZER.size).tolist() for byte in text]
    for step in range(max(map(len, texts)) + 1):
        for index, matcher in enumerate(matchers):
            if index == 4 and step > 1:
                continue  # one of them is cancelled
            if step <= len(texts[index % 3]):
                assert allowed(matcher, TOKENIZER.size).tolist() == alone[index % 3][step]
            if step < len(texts[index % 3]):
                assert matcher.accept(texts[index % 3][step])
