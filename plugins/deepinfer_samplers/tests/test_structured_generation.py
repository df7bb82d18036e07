"""The shipped checkpoint answers under the corpora's grammars, through the whole engine; independent judges read it."""

from __future__ import annotations

import importlib.util
import json
import random
import re
from collections import Counter
from importlib.metadata import entry_points

import pytest
from ebnf_corpus import GRAMMARS, as_lark
from regex_corpus import REGEXES
from schema_corpus import SCHEMAS, validator

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.errors import InvalidParameter
from deepinfer_samplers.grammars.json_schema import lowered

if importlib.util.find_spec("xgrammar") is None:  # importing it by itself wants transformers
    pytest.skip("structured output is not installed: requirements-xgrammar.txt", allow_module_level=True)
lark = pytest.importorskip("lark", reason="the judge of grammars is not installed")
pytest.importorskip("deepinfer_v41", reason="the shipped checkpoint is not installed")

SEED = 20261129
LIMIT = 512
PROMPTS = ("import json\n", "def parse(text):\n", "# a list of names\n")


@pytest.fixture(scope="module")
def llm():
    if not entry_points(group="deepinfer.grammars", name="xgrammar"):
        pytest.skip("deepinfer-samplers was installed before it had a grammar engine: install it again")
    with LLM(max_num_seqs=32, so_timeout_s=120) as made:
        yield made


def answers(llm, forms, *, seeds: int, limit: int = LIMIT):
    """(name, text, whether it ended) of every form and seed: forms are (name, the parameter that gives the grammar)."""
    jobs = [(name, form, seed) for seed in range(seeds) for name, form in forms]
    params = [
        SamplingParams(temperature=0.8, top_p=0.95, seed=SEED + seed, max_tokens=limit, **form)
        for _, form, seed in jobs
    ]
    outputs = llm.generate([PROMPTS[seed % len(PROMPTS)] for _, _, seed in jobs], params)
    for (name, _, seed), output in zip(jobs, outputs, strict=True):
        if output.finish_reason not in ("stop", "length"):
            raise RuntimeError(
                f"{name} (seed {seed}) ended with {output.finish_reason} {output.finish_detail}: {output.error}"
            )
        yield name, output.text, output.finish_reason == "stop"


def is_refused(schema) -> bool:
    try:
        lowered(json.dumps(schema))
    except InvalidParameter:
        return True
    return False


def check_schemas(llm, chosen, *, seeds: int, limit: int = LIMIT) -> Counter[str]:
    schemas, seen = dict(chosen), Counter[str]()
    forms = [(name, {"json_schema": json.dumps(schema)}) for name, schema in chosen]
    for name, text, ended in answers(llm, forms, seeds=seeds, limit=limit):
        seen["ended" if ended else "cut"] += 1
        if ended:
            validator(schemas[name]).validate(json.loads(text))
    print(f"seed {SEED}: {dict(seen)}")
    return seen


def test_model_keeps_to_a_few_schemas(llm):
    some = [item for item in SCHEMAS if not is_refused(item[1])]
    seen = check_schemas(llm, random.Random(SEED).sample(some, 8), seeds=1, limit=96)
    assert seen["ended"] >= 4


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_model_keeps_to_every_schema(llm):
    taken = [item for item in SCHEMAS if not is_refused(item[1])]
    seen = check_schemas(llm, taken, seeds=1)
    assert seen["ended"] >= 0.8 * len(taken)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_model_keeps_to_every_expression(llm):
    seen = Counter[bool]()
    for pattern, text, ended in answers(llm, [(p, {"regex": p}) for p in REGEXES if p], seeds=1):
        seen[ended] += 1
        if ended and not re.fullmatch(pattern, text, re.ASCII):
            raise RuntimeError(f"{pattern!r} does not match {text!r}")
    assert seen[True] >= 0.8 * seen.total()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_model_keeps_to_every_grammar(llm):
    seen = Counter[bool]()
    for name, text, ended in answers(llm, [(n, {"grammar": g}) for n, g in GRAMMARS.items()], seeds=2, limit=160):
        seen[ended] += 1
        if ended:
            lark.Lark(as_lark(GRAMMARS[name]), start="root", parser="earley", lexer="dynamic_complete").parse(text)
    assert seen[True] >= 0.5 * seen.total()
