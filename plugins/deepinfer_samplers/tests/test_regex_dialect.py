"""The dialect of regular expressions: the whole output is matched, as ``re.fullmatch`` with ``re.ASCII`` does it."""

from __future__ import annotations

import random
import re

import pytest
from regex_corpus import REGEXES, TEXTS
from structured_walk import ByteTokenizer, holds, walk

from deepinfer_core.errors import InvalidParameter
from deepinfer_samplers.grammars import charset, regex
from deepinfer_samplers.grammars.schema_match import matches

SEED = 20261129
TOKENIZER = ByteTokenizer()


def compile_regex(engine, pattern):
    return engine.compile({"schema_type": "regex", "schema": pattern})


def test_corpus_has_a_hundred_expressions():
    assert len(set(REGEXES)) == 100


def test_expression_holds_for_the_texts_that_re_matches_as_a_whole(engine):
    differing = []
    for pattern in REGEXES:
        grammar = compile_regex(engine, pattern)
        for text in TEXTS:
            expected = re.fullmatch(pattern, text, re.ASCII) is not None
            if holds(grammar, TOKENIZER, text) != expected:
                differing.append((pattern, text, expected))
    assert differing == []


@pytest.mark.parametrize("seeds", [2, pytest.param(40, marks=pytest.mark.slow)])
def test_walk_of_an_expression_is_matched_as_a_whole(engine, seeds):
    ended = cut = 0
    for pattern in REGEXES:
        grammar = compile_regex(engine, pattern)
        for seed in range(seeds):
            temper = ("mixed", "wild", "short", "long")[seed % 4]
            found = walk(grammar, TOKENIZER, random.Random(f"{SEED} {pattern} {seed}"), temper=temper, limit=200)
            ended, cut = ended + found.finished, cut + (not found.finished)
            if found.finished and not re.fullmatch(pattern, found.text.decode(), re.ASCII):
                raise RuntimeError(f"{pattern!r} does not match {found.text!r} (seed {seed})")
    print(f"seed {SEED}: {ended} ended, {cut} cut")
    assert ended >= 0.8 * (ended + cut)


@pytest.mark.parametrize("count", [150, pytest.param(4000, marks=pytest.mark.slow)])
@pytest.mark.timeout(600)
def test_random_expression_agrees_with_re(engine, count):
    words = [
        "".join(rng.choice("xyz") for _ in range(n))
        for rng in [random.Random(SEED)]
        for n in (0, 1, 1, 2, 2, 3, 3, 4, 5)
    ]
    differing = []
    for index in range(count):
        pattern = _random(random.Random(f"{SEED} {index}"), 3)
        grammar, node = compile_regex(engine, pattern), regex.whole(regex.parse(pattern))
        for text in words:
            expected = re.fullmatch(pattern, text) is not None
            if (holds(grammar, TOKENIZER, text), matches(node, text)) != (expected, expected):
                differing.append((pattern, text, expected))
    assert differing == []


def _random(rng: random.Random, depth: int) -> str:
    kind = rng.random()
    if depth <= 0 or kind < 0.3:
        return rng.choice(["x", "y", "z", "[xy]", "[^x]", "."])
    if kind < 0.55:
        return "".join(_random(rng, depth - 1) for _ in range(rng.randint(1, 3)))
    if kind < 0.7:
        return "(?:" + "|".join(_random(rng, depth - 1) for _ in range(rng.randint(2, 3))) + ")"
    return f"(?:{_random(rng, depth - 1)})" + rng.choice(
        ["?", "*", "+", "{2}", "{0,2}", "{1,2}", "{2,}", "{2,3}", "{0}"]
    )


def test_alternatives_tied_to_the_ends_match_only_themselves(engine):
    grammar = compile_regex(engine, "^a|b$")
    assert [text for text in ("a", "b", "ab", "ax", "xb", "", "aa") if holds(grammar, TOKENIZER, text)] == ["a", "b"]


def test_negated_class_of_accented_letters_takes_other_signs(engine):
    grammar = compile_regex(engine, "[^àâéèêëîïôûù]")
    assert [text for text in ("é", "à", "a", "中", "я", "😀") if holds(grammar, TOKENIZER, text)] == [
        "a",
        "中",
        "я",
        "😀",
    ]


def test_cyrillic_class_takes_cyrillic(engine):
    grammar = compile_regex(engine, "[а-яё]+")
    assert [text for text in ("привет", "ёж", "privet", "Привет") if holds(grammar, TOKENIZER, text)] == [
        "привет",
        "ёж",
    ]


@pytest.mark.parametrize(
    ("pattern", "construct"),
    [
        ("(?=a)a", "look-ahead"), ("(?!a)b", "look-ahead"), ("(?<=a)b", "look-behind"), ("(?<!a)b", "look-behind"),
        (r"(a)\1", "a back-reference"), ("(?P<n>a)(?P=n)", "a back-reference"), (r"\k<n>", "a back-reference"),
        (r"\bword", "a word boundary"), (r"a\B", "a word boundary"), ("(?i)a", "inline flags"),
        ("(?s:a)", "inline flags"),
        ("(?>a)", "an atomic group"), ("a++", "a possessive repetition"), (r"\p{L}", "a Unicode property"),
        ("a^b", "an anchor inside the expression"), ("(^a)", "an anchor inside the expression"),
        ("(?#c)a", "a comment"),
        ("(?(1)a)", "a condition"), (r"\07", "an octal escape"), ("[[:alpha:]]", "a POSIX class"),
        ("a{100001}", "a repetition above 100000"),
        ("((a{1000}){1000}){9}", "repetitions that make more than 1000000 characters"),
        ("(" * 70 + ")" * 70, "more than 64 nested groups"),
    ],
)  # fmt: skip
def test_construct_without_meaning_is_refused_by_name(pattern, construct):
    with pytest.raises(InvalidParameter) as caught:
        regex.parse(pattern)
    assert caught.value.details["construct"] == construct
    assert construct in str(caught.value)


@pytest.mark.parametrize(
    "pattern",
    ["(a", "a)", "[a", "[]", "[^]", "a**", "*a", "+", "a{", "a{2", "a{3,2}", "a{,}", "[b-a]", "[a-\\d]", "\\", "\\q",
     "\\u12",
     "\\ud800", "(?<1>a)"],
)  # fmt: skip
def test_malformed_expression_is_refused_with_its_position(pattern):
    with pytest.raises(InvalidParameter) as caught:
        regex.parse(pattern)
    assert "position" in caught.value.details


def test_expression_for_schemas_leaves_out_what_some_validator_counts_as_the_class():
    (branch,) = regex.parse(r"\D\W\S", regex.SCHEMA)
    sets = [part.ranges for part in branch.node.parts]
    assert all(
        not charset.intersection(ranges, charset.chars(bad)) for ranges, bad in zip(sets, "٣é\u00a0", strict=True)
    )
    assert charset.complement(charset.complement(charset.WORD)) == charset.WORD


def test_lengths_of_an_expression_are_known():
    known = {"": (0, 0), "a{2,3}b?": (2, 4), "a|bcd": (1, 3), "(ab)*": (0, None), "a+": (1, None), "(a{0}b){2}": (2, 2)}
    assert {pattern: regex.lengths(regex.whole(regex.parse(pattern))) for pattern in known} == known
