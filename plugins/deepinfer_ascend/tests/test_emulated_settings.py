"""What a user may set, under emulation: the answers of ``cpu``, bit for bit, and the same refusals.

Compared are tokens, texts, ends, counts of drafts and log-probabilities by their bits: the equivalents compute with the
plain ops, so there is nothing that may differ.
"""

import importlib.util
import json
import random
import re

import pytest

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.errors import ConfigError, UnsupportedFeature

pytestmark = [pytest.mark.emulated, pytest.mark.timeout(1200)]  # seconds on an idle machine, minutes on a crowded one
EMULATED = {"backend": "ascend", "emulate": True}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["read", "write"]}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "n"],
    "additionalProperties": False,
}


def prompt(length, seed):
    draw = random.Random(seed)
    return [draw.randrange(3, 1500) for _ in range(length)]


CASES = [
    ("import os", {"temperature": 0}),
    ("def main(", {"temperature": 0.8, "seed": 3, "n": 3}),
    (prompt(40, 1), {"temperature": 1.2, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "seed": 4}),
    (prompt(1, 2), {"temperature": 0, "repetition_penalty": 1.3, "frequency_penalty": 0.7}),
    (prompt(90, 3), {"temperature": 0.7, "seed": 5, "logit_bias": {17: 4.0, 201: -100.0}}),
    ("class A", {"temperature": 0, "stop": ["(", " = "]}),
]


def run(cases=CASES, *, times=1, **settings):
    """All that can be seen of the answers, in the last of ``times`` calls of one engine."""
    with LLM(kv_memory="64MiB", max_num_seqs=8, **settings) as llm:
        params = [SamplingParams(**{"max_tokens": 8, "logprobs": True, **wish}) for _, wish in cases]
        for _ in range(times):
            outputs = llm.generate([p for p, _ in cases], params)
        llm.built.engine.core.audit()
    assert [output.error for output in outputs] == [None] * len(cases)
    assert all(output.emulated == settings.get("emulate", False) for output in outputs)
    return [
        (
            output.cached_tokens,
            [
                (c.token_ids, c.text, c.finish_reason, c.drafted_tokens, c.accepted_tokens, c.so_complete,
                 [item.logprob.hex() for item in c.logprobs])
                for c in output.outputs
            ],
        )
        for output in outputs
    ]  # fmt: skip


SETTINGS = {
    "steps in flight and drafts, rejection": {"draft_tokens": 4, "seed": 1},
    "one step at a time": {"overlap": False},
    "deterministic run": {"deterministic": "run"},
    "drafts, coupled": {"draft_tokens": 3, "verify": "coupled", "deterministic": "run"},
    "chunks": {"max_chunk": 7, "overlap": False},
    "bounded replay, mask": {"replay_mode": "mask", "keep_tokens": 37},
    "bounded replay, compact, with drafts": {"replay_mode": "compact", "keep_tokens": 37, "draft_tokens": 2},
    "graphs of the host": {"graphs": True},
    "exact": {"numeric_mode": "exact"},
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if place == 0 else pytest.mark.slow)  # one in the gate: the others are minutes
        for place, name in enumerate(SETTINGS)
    ],
)
def test_answers_are_those_of_cpu(name):
    assert run(**EMULATED, **SETTINGS[name]) == run(backend="cpu", **SETTINGS[name])


@pytest.mark.slow
@pytest.mark.parametrize("replay", ["window", "exact"])
def test_answers_behind_a_prefix_hit_are_those_of_cpu(replay):
    settings = {"prefix_cache": True, "prefix_replay": replay, "block_size": 16}
    shared = prompt(400, 8)
    cases = [([*shared, *prompt(n, n)], {"temperature": 0}) for n in (3, 20)]
    found = run(cases, times=2, **EMULATED, **settings)
    assert found == run(cases, times=2, backend="cpu", **settings)
    assert all(cached > 0 for cached, _ in found)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("xgrammar") is None, reason="structured output is not installed")
@pytest.mark.parametrize("drafts", [0, 3])
def test_structured_answers_are_those_of_cpu(drafts):
    head = r"(def|class) [a-z]{1,8}\(\): (pass|return)"
    cases = [
        ("import os\n", {"regex": head, "max_tokens": 40, "temperature": 0.8, "seed": 3}),
        ("def f(", {"json_schema": SCHEMA, "max_tokens": 60, "temperature": 0.8, "seed": 4}),
        ("class A", {"temperature": 0}),
    ]
    settings = {"draft_tokens": drafts, "deterministic": "run"} | ({"verify": "coupled"} if drafts else {})
    found = run(cases, **EMULATED, **settings)
    assert found == run(cases, backend="cpu", **settings)
    assert re.fullmatch(head, found[0][1][0][1])
    assert set(json.loads(found[1][1][0][1])) == {"name", "n"}


def test_bits_that_do_not_depend_on_the_batch_are_promised_by_cpu_alone():
    """Products of vendors' libraries may be split by the number of rows: nothing claims that they are not."""
    with pytest.raises(UnsupportedFeature, match="does not claim batch_invariant") as refused:
        LLM(**EMULATED, deterministic="batch", kv_memory="64MiB")
    assert "--backend cpu" in refused.value.remedy
    assert "--deterministic run" in refused.value.remedy


@pytest.mark.parametrize("settings", [{"backend": "auto"}, {"backend": "cpu"}])
def test_an_emulation_is_of_a_backend_that_is_named_and_has_one(settings):
    with pytest.raises((ConfigError, UnsupportedFeature)) as refused:
        LLM(**settings, emulate=True)
    assert refused.value.remedy
