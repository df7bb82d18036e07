"""Three hundred schemas: what the engine lets through satisfies the schema, as an independent validator reads it."""

from __future__ import annotations

import importlib.util
import json
import random
from collections import Counter

import pytest
from schema_corpus import BY_HAND, SCHEMAS, SIZE, validator
from structured_walk import ByteTokenizer, walk

from deepinfer_core.errors import InvalidParameter

if importlib.util.find_spec("xgrammar") is None:  # importing it by itself wants transformers
    pytest.skip("structured output is not installed: requirements-xgrammar.txt", allow_module_level=True)

SEED = 20261129
LIMIT = 512


@pytest.fixture(scope="module")
def compiled(engine):
    """Name -> schema and grammar; None where the schema was refused."""
    out = {}
    for name, schema in SCHEMAS:
        try:
            out[name] = schema, engine.compile({"schema_type": "json", "schema": json.dumps(schema)})
        except InvalidParameter as err:
            if not err.details.get("path") or not err.details.get("keywords"):
                raise RuntimeError(f"{name} is refused without a place: {err}") from err
            out[name] = schema, None
    return out


def test_corpus_has_the_schemas_that_it_promises_and_refuses_few():
    assert len(SCHEMAS) == SIZE == len({name for name, _ in SCHEMAS})
    assert len(BY_HAND) > 100


def test_corpus_is_refused_only_where_a_keyword_is_not_enforced(compiled):
    refused = [name for name, (_, grammar) in compiled.items() if grammar is None]
    print(f"{len(refused)} of {SIZE} refused: {refused}")
    assert len(refused) <= SIZE * 0.2


@pytest.mark.parametrize("temper", ["mixed", "wild"])
def test_walk_that_ends_satisfies_its_schema(compiled, temper):
    assert _walked(compiled, (temper,), seeds=1)["ended"] >= 0.8 * SIZE * 0.8


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_walks_that_end_satisfy_their_schemas(compiled):
    seen = _walked(compiled, ("mixed", "wild", "long", "short"), seeds=8)
    assert seen["ended"] >= 0.8 * (seen["ended"] + seen["cut"])


def _walked(compiled, tempers, seeds: int) -> Counter[str]:
    """Walks over all grammars; raises for a text that its schema does not hold for, or that is no prefix when cut."""
    seen: Counter[str] = Counter()
    tokenizer = ByteTokenizer()
    for name, (schema, grammar) in compiled.items():
        if grammar is None:
            continue
        judge = validator(schema)
        for seed in range(seeds):
            for temper in tempers:
                rng = random.Random(f"{SEED} {name} {seed} {temper}")
                found = walk(grammar, tokenizer, rng, limit=LIMIT, temper=temper)
                seen["ended" if found.finished else "cut"] += 1
                if not found.finished:
                    again = grammar.matcher()
                    if not all(again.accept(token) for token in found.tokens):
                        raise RuntimeError(f"{name} {seed} {temper}: a cut text is no prefix")
                    continue
                value = json.loads(found.text.decode())
                if not judge.is_valid(value):
                    reasons = [error.message for error in judge.iter_errors(value)]
                    raise RuntimeError(f"{name} {seed} {temper}: {found.text!r} for {json.dumps(schema)}: {reasons}")
    print(f"seed {SEED}: {dict(seen)}")
    return seen
