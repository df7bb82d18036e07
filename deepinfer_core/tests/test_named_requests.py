"""Requests that name row samplers and logits filters, through the whole engine with toy parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attrs import define
from engine_toys import TOKENS, ToyParts, ToySampler, byte_tokenizer, check_idle, ids, prompts_of, toy_llm

from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import InvalidParameter, PluginMissing
from deepinfer_core.llm import LLM
from deepinfer_core.parameters.named_parts import MAX_FILTERS, NamedPart
from deepinfer_core.parameters.sampling_params import SamplingParams

PROMPTS = prompts_of(4, 9)


class NamingSampler(ToySampler):
    """The toy sampler, which also serves requests that name something."""

    def sample_with(self, logits: Any, inputs: Any, parts: Any) -> Any:
        scores = np.array(logits, dtype=np.float32)
        width = self.vocab_size
        starts = np.arange(len(inputs.temperature)) if inputs.first_row is None else inputs.first_row
        for request, named in parts.items():
            row = slice(int(starts[request]), int(starts[request]) + 1)
            scores[row, :width] = named.filtered(scores[row, :width], [int(inputs.sample_pos[request])])
        out = self.sample(scores, inputs)
        for request, named in parts.items():
            row = slice(int(starts[request]), int(starts[request]) + 1)
            if named.sampler is not None:
                tokens = named.sampled(scores[row, :width], [lambda p: int(np.argmax(p))])
                out.sampled_ids[request] = 0 if tokens is None else tokens[0]
                out.row_status[request] = 2 if tokens is None else out.row_status[request]
        return out


class Only:
    """Filter: nothing but ``token``; raises from position ``until`` on."""

    def __init__(self, token: int, until: int = 10**9) -> None:
        self.token, self.until = token, until

    def apply(self, logits: Any, positions: Any) -> Any:
        if positions[0] >= self.until:
            raise RuntimeError("no more")
        return np.where(np.arange(logits.shape[1]) == self.token, 1.0, -1.0)[None].astype(np.float32)


class Last:
    """Row sampler: the highest id that is allowed."""

    def sample(self, logits: Any, draws: Any) -> list[int]:
        return [int(np.flatnonzero(np.isfinite(row))[-1]) for row in logits]


@define(eq=False)
class NamingParts(ToyParts):
    made: Any = None

    def make_row_sampler(self, name: str, params: Any, vocab_size: int) -> Any:
        self.made.append((name, dict(params), vocab_size))
        if name != "last":
            raise PluginMissing(f"no sampler named {name!r}")
        return Last()

    def make_logits_filter(self, name: str, params: Any, vocab_size: int) -> Any:
        self.made.append((name, dict(params), vocab_size))
        if name != "only":
            raise PluginMissing(f"no logits_filter named {name!r}")
        return Only(**params)


def naming_llm(**settings: object) -> tuple[LLM, list[Any]]:
    made: list[Any] = []
    config = EngineConfig.resolve({"max_num_seqs": 16, "validation": "full", **settings}, environ={})
    return LLM.from_assembly(NamingParts(config, sampler=NamingSampler(), made=made), byte_tokenizer()), made


def asking(**given: Any) -> SamplingParams:
    return SamplingParams(max_tokens=5, **given)


@pytest.mark.parametrize("overlap", [True, False])
def test_named_parts_change_their_own_requests_only(overlap: bool) -> None:
    with toy_llm(overlap=overlap) as llm:
        plain = ids(llm.generate(PROMPTS, asking(temperature=0)))
    llm, made = naming_llm(overlap=overlap)
    with llm:
        only = {"name": "only", "params": {"token": 65}}
        params = [
            asking(temperature=0),
            asking(temperature=0, logits_filters=[only]),
            asking(sampler="last"),
            asking(temperature=0),
        ]
        outputs = llm.generate(PROMPTS, params)
        assert ids(outputs) == [plain[0], [65] * 5, [TOKENS - 1] * 5, plain[3]]
        check_idle(llm)
    assert made == [("only", {"token": 65}, TOKENS), ("last", {}, TOKENS)]


def test_named_parts_are_those_of_every_sample_of_a_prompt() -> None:
    llm, _ = naming_llm()
    with llm:
        output = llm.generate(
            PROMPTS[0], asking(n=3, temperature=0, logits_filters=[{"name": "only", "params": {"token": 66}}])
        )[0]
        assert [list(sample.token_ids) for sample in output.outputs] == [[66] * 5] * 3
        check_idle(llm)


def test_unknown_names_end_their_prompts_before_work_starts() -> None:
    llm, _ = naming_llm()
    with llm:
        params = [asking(temperature=0), asking(sampler="lost"), asking(temperature=0, logits_filters="onli")]
        outputs = llm.generate(PROMPTS[:3], params)
        assert [output.finish_reason for output in outputs] == ["length", "input", "input"]
        assert [type(output.error) for output in outputs[1:]] == [PluginMissing, PluginMissing]
        check_idle(llm)


def test_part_that_raises_ends_its_request_with_its_error_and_tokens() -> None:
    with toy_llm() as llm:
        plain = ids(llm.generate(PROMPTS, asking(temperature=0)))
    llm, _ = naming_llm()
    with llm:
        failing = {"name": "only", "params": {"token": 65, "until": len(PROMPTS[1]) + 2}}
        params = [asking(temperature=0)] * 4
        params[1] = asking(temperature=0, logits_filters=[failing])
        outputs = llm.generate(PROMPTS, params)
        assert list(outputs[1].token_ids) == [65, 65]
        assert outputs[1].finish_reason == "engine"
        assert outputs[1].error is not None
        assert outputs[1].error.what.endswith("logits filter 'only' failed (token 3)")
        assert outputs[1].error.reason.startswith("RuntimeError: no more (raised at test_named_requests.py:")
        assert [list(outputs[i].token_ids) for i in (0, 2, 3)] == [plain[i] for i in (0, 2, 3)]
        assert ids(llm.generate(PROMPTS, asking(temperature=0))) == plain
        check_idle(llm)


def test_sampler_that_serves_no_named_parts_refuses_them() -> None:
    with toy_llm() as llm:
        outputs = llm.generate(PROMPTS[:2], [asking(sampler="last"), asking(logits_filters="only")])
        assert [output.error.what for output in outputs if output.error] == [
            "sampler: the sampler of this engine calls no row samplers and no logits filters",
            "logits_filters: the sampler of this engine calls no row samplers and no logits filters",
        ]


# --- parameters --------------------------------------------------------------------------------------------------


def test_params_take_a_name_or_a_name_with_parameters() -> None:
    part = NamedPart("a", {"x": [1]})
    assert asking(sampler="a").sampler == NamedPart("a")
    assert asking(sampler={"name": "a", "params": {"x": [1]}}).sampler == part
    assert asking(logits_filters="a").logits_filters == (NamedPart("a"),)
    assert asking(logits_filters=["b", {"name": "a", "params": {"x": [1]}}]).logits_filters == (NamedPart("b"), part)
    assert asking(sampler=None, logits_filters=None).logits_filters == ()
    assert asking(sampler="a").updated({"max_tokens": 3}).sampler == NamedPart("a")
    assert hash(asking(sampler="a", logits_filters="b")) == hash(asking(sampler="a", logits_filters="b"))


def test_params_keep_a_copy_of_the_parameters() -> None:
    given = {"x": [1]}
    params = asking(sampler={"name": "a", "params": given})
    given["x"].append(2)
    assert params.sampler == NamedPart("a", {"x": [1]})


@pytest.mark.parametrize(
    "value",
    ["", "A", "a b", 3, True, {}, {"name": 1}, {"name": "a", "more": 1}, {"name": "a", "params": [1]},
     {"name": "a", "params": {"x": object()}}, {"name": "a", "params": {"x": float("nan")}},
     {"name": "a", "params": {"x": "y" * 70_000}}, {"name": "a", "params": {1: 2}}],
    ids=lambda value: repr(value)[:40],
)  # fmt: skip
def test_params_that_name_no_part_are_refused(value: object) -> None:
    with pytest.raises(InvalidParameter, match="sampler is "):
        asking(sampler=value)
    with pytest.raises(InvalidParameter, match="logits_filters is "):
        asking(logits_filters=[value])


def test_params_with_too_many_filters_are_refused() -> None:
    assert len(asking(logits_filters=["a"] * MAX_FILTERS).logits_filters) == MAX_FILTERS
    with pytest.raises(InvalidParameter, match=f"at most {MAX_FILTERS} filters"):
        asking(logits_filters=["a"] * (MAX_FILTERS + 1))


@pytest.mark.parametrize("field", [{"temperature": 0}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}], ids=str)
def test_params_that_a_row_sampler_would_ignore_are_refused(field: dict[str, float]) -> None:
    with pytest.raises(InvalidParameter, match=f"^E_PARAM: {next(iter(field))} is .*with sampler 'a'"):
        asking(sampler="a", **field)
