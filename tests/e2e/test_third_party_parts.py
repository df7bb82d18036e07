"""Row samplers and logits filters that requests name: a third party's, beside the shipped plugins, and ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import metadata

import pytest

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.assembly.assemble import assemble
from deepinfer_core.config import EngineConfig
from deepinfer_core.plugins.discovery import installed_entry_points
from deepinfer_core.plugins.manager import PluginManager

PLUGIN = """
import numpy as np
from deepinfer_core import hookimpl

class MinP:
    def __init__(self, min_p):
        if not 0.0 < min_p <= 1.0:
            raise ValueError(f"min_p must be in (0, 1], got {min_p}")
        self.min_p = min_p
    def sample(self, logits, draws):
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p[p < self.min_p] = 0.0
        p /= p.sum(axis=1, keepdims=True)
        return [draw(row) for draw, row in zip(draws, p, strict=True)]

class Ban:
    def __init__(self, ids):
        self.ids = ids
    def apply(self, logits, positions):
        logits[:, self.ids] = -np.inf
        return logits

@hookimpl
def deepinfer_sampler_create(name, params):
    return MinP(params.get("min_p", 0.05))

@hookimpl
def deepinfer_logits_filter_create(name, params, vocab_size):
    return Ban(params["ids"])
"""
FILES = {
    "acme_parts-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: acme-parts\nVersion: 1.0\n",
    "acme_parts-1.0.dist-info/entry_points.txt": (
        "[deepinfer.manifest]\nacme-parts = acme_parts:deepinfer.toml\n"
        "[deepinfer.samplers]\nacme_min_p = acme_parts.plugin\n"
        "[deepinfer.logits_filters]\nban = acme_parts.plugin\n"
    ),
    "acme_parts/__init__.py": "",
    "acme_parts/deepinfer.toml": (
        'schema = 1\napi = ">=1.0,<2"\n[[sampler]]\nname = "acme_min_p"\n[[logits_filter]]\nname = "ban"\n'
    ),
    "acme_parts/plugin.py": PLUGIN,
}
PROMPTS = ["import os", "def main", "class A", "for i in"]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    installed = installed_entry_points()  # read once in a process, and without this folder
    folder = tmp_path_factory.mktemp("site-packages")
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    ours = [entry for dist in metadata.distributions(path=[str(folder)]) for entry in dist.entry_points]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        config = EngineConfig.resolve({"max_num_seqs": 8}, environ={})
        manager = PluginManager.from_config(config, [*installed, *ours])
        with LLM.from_assembly(assemble(config, manager=manager)) as made:
            yield made


def tokens(llm: LLM, params: list[SamplingParams]) -> list[list[int]]:
    return [list(output.token_ids) for output in llm.generate(PROMPTS, params)]


def params(index: int, **given: object) -> SamplingParams:
    return SamplingParams(max_tokens=8, ignore_eos=True, seed=40 + index, **given)


def test_row_sampler_of_the_guide_gives_the_tokens_of_min_p(llm: LLM) -> None:
    own = tokens(llm, [params(i, min_p=0.1) for i in range(4)])
    named = {"name": "acme_min_p", "params": {"min_p": 0.1}}
    assert tokens(llm, [params(i, sampler=named) for i in range(4)]) == own


def test_filter_bans_its_tokens_and_neighbours_keep_theirs(llm: LLM) -> None:
    plain = tokens(llm, [params(i) for i in range(4)])
    banned = sorted(set(plain[1] + plain[2]))
    ban = {"name": "ban", "params": {"ids": banned}}
    mixed = tokens(llm, [params(0), params(1, logits_filters=[ban]), params(2, logits_filters=ban), params(3)])
    assert (mixed[0], mixed[3]) == (plain[0], plain[3])
    assert not set(mixed[1] + mixed[2]) & set(banned)


def test_parameters_that_the_plugin_refuses_end_the_prompt_before_it_runs(llm: LLM) -> None:
    outputs = llm.generate(PROMPTS[:2], [params(0), params(1, sampler={"name": "acme_min_p", "params": {"min_p": 2}})])
    assert [output.finish_reason for output in outputs] == ["length", "input"]
    assert outputs[1].error is not None
    assert "ValueError: min_p must be in (0, 1], got 2" in str(outputs[1].error)


def test_unknown_names_are_refused_with_the_nearest_one(llm: LLM) -> None:
    outputs = llm.generate(PROMPTS[:2], [params(0, sampler="acme_minp"), params(1, logits_filters="bann")])
    assert [output.error.what for output in outputs if output.error is not None] == [
        "no sampler named 'acme_minp'; did you mean 'acme_min_p'?",
        "no logits_filter named 'bann'; did you mean 'ban'?",
    ]


def test_json_lines_name_parts_as_well(llm: LLM) -> None:
    line = json.loads(
        '{"prompt": "x = ", "max_tokens": 4, "logits_filters": [{"name": "ban", "params": {"ids": [5]}}]}'
    )
    output = llm.generate([line])[0]
    assert output.error is None
    assert 5 not in output.token_ids


def test_shipped_filter_that_keeps_one_token_makes_hot_answers_greedy(llm: LLM) -> None:
    greedy = tokens(llm, [params(i, temperature=0) for i in range(4)])
    assert tokens(llm, [params(i, temperature=3.0) for i in range(4)]) != greedy
    one = {"name": "top_n_sigma", "params": {"n": 1e-6}}
    assert tokens(llm, [params(i, temperature=3.0, logits_filters=[one]) for i in range(4)]) == greedy


def test_shipped_filter_refuses_a_bad_n_before_the_prompt_runs(llm: LLM) -> None:
    output = llm.generate(PROMPTS[0], params(0, logits_filters=[{"name": "top_n_sigma", "params": {"n": 0}}]))[0]
    assert (output.finish_reason, str(output.error).splitlines()[0]) == (
        "input",
        "E_PARAM: n of logits filter 'top_n_sigma' must be a finite number above 0, got 0",
    )
