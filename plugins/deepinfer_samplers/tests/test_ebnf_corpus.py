"""Thirty grammars in EBNF: what the engine lets through is parsed by an independent Earley parser."""

from __future__ import annotations

import random

import pytest
from ebnf_corpus import GRAMMARS, as_lark
from structured_walk import ByteTokenizer, walk

from deepinfer_core.errors import InvalidParameter
from deepinfer_samplers.grammars import ebnf

lark = pytest.importorskip("lark", reason="the judge of grammars is not installed")

SEED = 20261129
TOKENIZER = ByteTokenizer()


def compile_ebnf(engine, grammar):
    return engine.compile({"schema_type": "ebnf", "schema": grammar})


def test_corpus_has_thirty_grammars():
    assert len(GRAMMARS) == 30


@pytest.mark.parametrize("seeds", [4, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.timeout(900)
def test_walk_of_a_grammar_is_parsed(engine, seeds):
    ended = cut = 0
    for name, grammar in GRAMMARS.items():
        compiled = compile_ebnf(engine, grammar)
        judge = lark.Lark(as_lark(grammar), start="root", parser="earley", lexer="dynamic_complete")
        for seed in range(seeds):
            temper = ("mixed", "wild", "short", "long")[seed % 4]
            found = walk(compiled, TOKENIZER, random.Random(f"{SEED} {name} {seed}"), limit=60, temper=temper)
            ended, cut = ended + found.finished, cut + (not found.finished)
            if found.finished:
                judge.parse(found.text.decode())  # raises for a text outside of the grammar
    print(f"seed {SEED}: {ended} ended, {cut} cut")
    assert ended >= 0.8 * (ended + cut)


@pytest.mark.parametrize(
    ("grammar", "part"),
    [
        ("root ::= root", "circular reference: rule 'root'"),
        ("root ::= a\na ::= b\nb ::= a", "circular reference: rule 'root'"),
        ('root ::= "a" root', "circular reference: rule 'root'"),
        ('root ::= "x" (a | b)\na ::= "y" b\nb ::= "z" a', "circular reference"),
        ('root ::= ("a"', "cannot be compiled"),
        ('root ::= "a', "cannot be compiled"),
        ("root ::= [a-", "cannot be compiled"),
        ("root ::= missing", "cannot be compiled"),
        ('start ::= "a"', "cannot be compiled"),
        ("", "cannot be compiled"),
        ("(" * 200, "cannot be compiled"),
        ('root ::= "a"\n' + "root ::= " + "(" * 200, "cannot be compiled"),
        ("root ::= " + "(" * 200 + '"a"' + ")" * 200, "more than 128 nested groups"),
        ('root ::= "' + "a" * 300_000 + '"', "more than 262,144 bytes"),
    ],
)
def test_grammar_that_cannot_be_used_gives_one_clear_error(engine, grammar, part):
    with pytest.raises(InvalidParameter) as caught:
        compile_ebnf(engine, grammar)
    assert part in str(caught.value)
    assert caught.value.remedy
    assert ".cc:" not in str(caught.value)  # no source places of the library


def test_grammar_with_a_way_out_of_each_circle_is_taken(engine):
    for grammar in (
        "root ::= root? [a-z]",
        'root ::= "a" root | "b"',
        'root ::= (root "x")* "y"',
        'root ::= "(" root{0,2} ")"',
    ):
        ebnf.check(grammar)
        compile_ebnf(engine, grammar)


def test_grammar_of_the_empty_text_ends_at_once(engine):
    found = walk(compile_ebnf(engine, 'root ::= ""'), TOKENIZER, random.Random(SEED))
    assert (found.text, found.finished) == (b"", True)
