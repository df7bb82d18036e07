"""Mask, accept, rollback and finished are one law, told four ways: checked against each other along random walks."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from deepinfer_core.conformance.failures import fail, require, require_equal
from deepinfer_core.conformance.grammar.cases import CASES, KEYWORDS, Case, judge_json
from deepinfer_core.conformance.grammar.vocabulary import end_token, tokenizer, vocab_size
from deepinfer_core.conformance.grammar.walks import Walk, holds, look_around, mask_of, random_walk
from deepinfer_core.conformance.part import not_offered

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name[:60])


def judged(walk: Walk, case: Case) -> bool:
    """Whether the walk ended; a finished text is judged, and at every place whether it may end there."""
    table = tokenizer().token_bytes
    text = b""
    for token, mask in zip(walk.tokens, walk.masks, strict=False):
        if case.knows_end is not None:
            may_end = case.knows_end(text.decode()) if _whole(text) else False
            require_equal(
                bool(mask[end_token()]),
                may_end,
                "the end is allowed where the text may not end, or not where it may",
                grammar=case.name,
                behind=text,
            )
        text += table[token] if token < len(table) else b""
    if walk.tokens[-1:] != [end_token()]:
        return False
    require(_whole(text) or not case.is_utf8, "a finished text is not UTF-8", grammar=case.name, got=text)
    case.judge(text.decode(errors="replace"))
    return True


def _whole(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.level("smoke")
@each_case
def test_texts_of_the_grammar_are_taken_and_others_are_not(grammar_of: Any, case: Any) -> None:
    grammar = grammar_of(case)
    for text in case.holds:
        require(holds(grammar, text), "a text of the grammar is not taken", grammar=case.name, text=text)
    for text in case.lacks:
        require(not holds(grammar, text), "a text that is none of the grammar is taken", grammar=case.name, text=text)


@pytest.mark.level("core")
@each_case
def test_random_walk_keeps_every_law_and_ends_in_a_text_of_the_grammar(grammar_of: Any, case: Any) -> None:
    grammar, ended = grammar_of(case), 0
    for seed in range(6):
        ended += judged(random_walk(grammar, case.name, random.Random(seed)), case)
    require(ended > 0, "no walk of six reached an end", grammar=case.name)


@pytest.mark.level("full")
@each_case
def test_many_random_walks_keep_every_law(grammar_of: Any, case: Any) -> None:
    grammar = grammar_of(case)
    for seed in range(100, 125):
        judged(random_walk(grammar, case.name, random.Random(seed), limit=120), case)


@pytest.mark.level("core")
@each_case
def test_every_token_is_judged_alike_by_mask_and_accept(grammar_of: Any, case: Any) -> None:
    """All ids of the vocabulary, at the first places of a text."""
    walk, rng = Walk(grammar_of(case).matcher(), case.name), random.Random(3)
    for _ in range(3):
        mask = walk.allowed()
        look_around(walk, mask, range(vocab_size()))
        others = [int(token) for token in np.flatnonzero(mask) if token != end_token()]
        if not others:
            return
        walk.take(rng.choice(others))


@pytest.mark.level("core")
@each_case
def test_nothing_follows_an_end_token_and_it_can_be_taken_back(grammar_of: Any, case: Any) -> None:
    walk = next(
        (
            w
            for seed in range(20)
            if (w := random_walk(grammar_of(case), case.name, random.Random(seed))).tokens[-1] == end_token()
        ),
        None,
    )
    if walk is None:
        fail("no walk of twenty reached an end", grammar=case.name)
    matcher, last = walk.matcher, walk.masks[len(walk.tokens) - 1]
    require_equal(matcher.finished(), True, "not finished behind an end token", grammar=case.name)
    for token in range(0, vocab_size(), 7):
        require_equal(bool(matcher.accept(token)), False, "a token was accepted behind the end", token=token)
    require_equal(bool(matcher.accept(end_token())), False, "a second end token was accepted")
    require_equal(matcher.finished(), True, "a refused token unfinished the matcher")
    matcher.rollback(1)
    require_equal(matcher.finished(), False, "still finished after the end token was taken back")
    require(np.array_equal(mask_of(matcher), last), "taking the end back does not restore the mask", grammar=case.name)
    require_equal(bool(matcher.accept(end_token())), True, "the end is not accepted a second time")
    steps = min(len(walk.tokens), 6)
    matcher.rollback(steps)
    want = walk.masks[len(walk.tokens) - steps]
    require(np.array_equal(mask_of(matcher), want), "rolling back across the end does not restore the mask", n=steps)


@pytest.mark.level("core")
def test_rollback_of_nothing_changes_nothing(grammar_of: Any) -> None:
    matcher = grammar_of(CASES[0]).matcher()
    matcher.rollback(0)
    before = mask_of(matcher)
    matcher.accept(ord("a"))
    matcher.rollback(0)
    matcher.rollback(1)
    require(np.array_equal(mask_of(matcher), before), "rollback(0) undid something, or rollback(1) did not")


@pytest.mark.level("core")
def test_tokens_without_text_are_never_taken(grammar_of: Any) -> None:
    table = tokenizer().token_bytes
    textless = [i for i in range(vocab_size()) if (i >= len(table) or not table[i]) and i != end_token()]
    for case in CASES:
        matcher = grammar_of(case).matcher()
        for token in textless:
            require_equal(bool(matcher.accept(token)), False, "a token without text was accepted", token=token)


@pytest.mark.level("core")
@each_case
def test_matchers_of_one_grammar_do_not_feel_each_other(grammar_of: Any, case: Any) -> None:
    """Requests share a grammar; each has a matcher of its own."""
    grammar = grammar_of(case)
    alone = [random_walk(grammar, case.name, random.Random(seed), look=0).tokens for seed in range(3)]
    matchers = [grammar.matcher() for _ in alone]
    for place in range(max(len(tokens) for tokens in alone)):
        for matcher, tokens in zip(matchers, alone, strict=True):
            if place < len(tokens):
                taken = matcher.accept(tokens[place])
                require_equal(bool(taken), True, "beside other matchers a token is not accepted", grammar=case.name)
    start = mask_of(grammar.matcher())
    require(np.array_equal(start, mask_of(grammar.matcher())), "new matchers start at different places")


@pytest.mark.level("core")
@pytest.mark.parametrize("schema", KEYWORDS, ids=lambda schema: json.dumps(schema)[:60])
def test_keyword_is_enforced_or_refused(compiled: Any, offers: Any, schema: Any) -> None:
    if offers("json") is not None:
        not_offered("json")
    pytest.importorskip("jsonschema", reason="texts are judged by jsonschema: pip install jsonschema")
    try:
        grammar = compiled({"schema_type": "json", "schema": json.dumps(schema)})
    except Exception as error:
        require(str(error).strip(), "an error without a text", got=type(error).__name__)
        not_offered(f"{json.dumps(schema)} ({error})")
    table = tokenizer().token_bytes
    for seed in range(8):
        walk = random_walk(grammar, json.dumps(schema), random.Random(seed), look=2)
        if walk.tokens[-1:] == [end_token()]:
            judge_json(b"".join(table[token] for token in walk.tokens if token < len(table)).decode(), schema)
