"""Answers in a grammar over the toy parts, against a list as history and a matcher fed with emitted tokens only."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import pytest
from drafting_toys import DraftingSampler, Pattern
from engine_toys import (
    EOS,
    TOKENS,
    TOY_HINTS,
    VOCAB,
    ToyModel,
    ToySampler,
    byte_tokenizer,
    check_idle,
    ids,
    prompts_of,
    small_pool,
    solo_tokens,
)
from grammar_toys import drafting_llm, grammar_llm, matcher_of, solo_in_grammar
from tiny_grammar import bits

from deepinfer_contracts import Level
from deepinfer_core.errors import NotSupported
from deepinfer_core.llm import LLM
from deepinfer_core.parameters.sampling_params import SamplingParams

pytestmark = pytest.mark.usefixtures("overlap")

SCHEMAS = {
    "word": ("regex", "[a-z]{3,6} (yes|no|maybe)"),
    "long": ("regex", r"(\d{2}, ?){4,9}end"),
    "choice": ("ebnf", 'root ::= "alpha" | "beta" | "gamma delta"'),
    "json": ("json_object", ""),
    "abcd": ("regex", "a(b|c)d"),
}


def params_in(name: str, **more: Any) -> SamplingParams:
    kind, schema = SCHEMAS[name]
    settings = {"temperature": 0, "max_tokens": 40, **more}
    return SamplingParams(so_args={"schema_type": kind, "schema": schema}, **settings)


def whole(name: str, prompt: Sequence[int], count: int = 40) -> list[int]:
    return solo_in_grammar(prompt, count, *SCHEMAS[name])


@pytest.mark.parametrize("name", list(SCHEMAS))
def test_answer_is_that_of_the_oracle_and_ends_by_itself(name):
    prompts = prompts_of(3, 9, seed=5)
    with grammar_llm() as llm:
        outputs = llm.generate(prompts, params_in(name))
        check_idle(llm)
    want = [whole(name, prompt) for prompt in prompts]
    assert ids(outputs) == want
    for output, tokens in zip(outputs, want, strict=True):
        ended = tokens[-1] == EOS
        assert (output.finish_reason, output.finish_detail) == (("stop", "eos") if ended else ("length", "max_tokens"))
        assert output.outputs[0].so_complete is ended
        assert output.as_record()["so_complete"] is ended


def test_answers_in_grammars_do_not_change_those_without():
    prompts = prompts_of(8, 7, seed=3)
    names = ["word", None, "long", None, "json", "abcd", None, "choice"]
    params = [
        SamplingParams(temperature=0, max_tokens=21) if name is None else params_in(name, max_tokens=21)
        for name in names
    ]
    with grammar_llm(max_num_seqs=3) as llm:
        outputs = llm.generate(prompts, params)
        check_idle(llm)
    want = [
        solo_tokens(prompt, 21) if name is None else whole(name, prompt, 21)
        for prompt, name in zip(prompts, names, strict=True)
    ]
    assert ids(outputs) == want
    assert [output.outputs[0].so_complete is None for output in outputs] == [name is None for name in names]


def test_constrained_requests_do_not_influence_each_other_when_one_is_cancelled():
    prompts = prompts_of(8, 6, seed=4)
    names = ["word", "long", "json", "long", "word", "json", "long", "word"]
    with grammar_llm() as llm, llm.stream(prompts, [params_in(name) for name in names]) as stream:
        outputs: dict[int, Any] = {}
        for chunk in stream:
            if chunk.index == 3 and not chunk.finished:
                stream.cancel(3)
            if chunk.output is not None:
                outputs[chunk.index] = chunk.output
    assert outputs[3].finish_reason == "abort"
    for index, name in enumerate(names):
        if index != 3:
            assert list(outputs[index].token_ids) == whole(name, prompts[index])


def test_text_of_a_sampled_answer_matches_its_grammar():
    with grammar_llm() as llm:
        outputs = llm.generate(["a"] * 12, params_in("word", temperature=1.5))
        objects = llm.generate(["b"] * 6, params_in("json", temperature=1.0, max_tokens=150))
    assert all(re.fullmatch(SCHEMAS["word"][1], output.text) for output in outputs)
    assert len({output.text for output in outputs}) > 3
    for output in objects:
        assert output.finish_reason == "length" or isinstance(json.loads(output.text), dict)


# --- samples, chunks, preemption ------------------------------------------------------------------------------------


def test_samples_of_a_prompt_have_a_matcher_each():
    prompt = prompts_of(1, 11, seed=8)[0]
    params = params_in("word", temperature=1.3, n=5, seed=7)
    with grammar_llm() as llm:
        (several,) = llm.generate([prompt], params)
        singles = llm.generate(
            [prompt] * 5, [attrs.evolve(params, n=1, seed=sample.seed) for sample in several.outputs]
        )
        check_idle(llm)
        assert llm.grammar_report.compiled == 1
    assert [sample.token_ids for sample in several.outputs] == [output.token_ids for output in singles]
    assert all(sample.so_complete and re.fullmatch(SCHEMAS["word"][1], sample.text) for sample in several.outputs)


def test_prompt_in_chunks_masks_its_first_token_only_once():
    prompts = prompts_of(3, 37, seed=9)
    with grammar_llm(max_num_batched_tokens=8, max_num_seqs=2, max_chunk=5) as llm:
        outputs = llm.generate(prompts, params_in("long"))
        check_idle(llm)
        report, steps = llm.grammar_report, llm.times.steps
    assert ids(outputs) == [whole("long", prompt) for prompt in prompts]
    assert report.masks == sum(len(output.token_ids) for output in outputs)
    assert report.steps < steps


def test_preempted_answer_goes_on_in_its_grammar():
    prompts = prompts_of(6, 5, seed=10)
    pool = small_pool(blocks=14, seqs=6)
    with grammar_llm(**pool, max_model_len=48) as llm:
        outputs = llm.generate(prompts, params_in("long"))
        check_idle(llm)
        assert llm.built.engine.core.stats().preemptions > 0
    assert ids(outputs) == [whole("long", prompt) for prompt in prompts]


# --- drafts -----------------------------------------------------------------------------------------------------------

PATTERNS: dict[str, Pattern] = {
    "all right": lambda seed, position, j: True,
    "all wrong": lambda seed, position, j: False,
    "in rotation": lambda seed, position, j: j < (seed + position) % 6,
    "right after wrong": lambda seed, position, j: (seed * 7 + position * 5 + j) % 3 != 0,
}


@pytest.mark.parametrize("pattern", list(PATTERNS))
@pytest.mark.parametrize("num_draft", [1, 5])
def test_drafts_do_not_change_an_answer_in_a_grammar(num_draft, pattern):
    names = ["word", "long", "json", "choice", "long", "word"]
    prompts = prompts_of(6, 7, seed=11)
    answers = [whole(name, prompt) for name, prompt in zip(names, prompts, strict=True)]
    texts = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    params = [params_in(name, seed=i + 1) for i, name in enumerate(names)]
    with drafting_llm(num_draft, PATTERNS[pattern], texts, max_num_seqs=4) as llm:
        outputs = llm.generate(prompts, params)
        check_idle(llm)
        accepted = llm.built.engine.core.stats().tokens_accepted
    assert [output.error for output in outputs] == [None] * 6
    assert ids(outputs) == answers
    if pattern == "all right":
        assert accepted > 0


@pytest.mark.parametrize("depth", range(5))
def test_draft_that_the_grammar_forbids_at_each_depth_leaves_the_masks_of_emitted_tokens(depth, monkeypatch):
    prompts = prompts_of(3, 7, seed=12)
    answers = [whole("long", prompt) for prompt in prompts]
    texts = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    sampled: list[tuple[int, int, list[int]]] = []
    original = DraftingSampler.sample

    def watch(self: Any, logits: Any, inputs: Any) -> Any:
        for row, words in enumerate(inputs.grammar_mask[0].tolist()):
            if row in inputs.grammar_rows[0]:  # the others ended in the step before
                sampled.append((int(inputs.seed[row]), int(inputs.sample_pos[row]), words))
        return original(self, logits, inputs)

    monkeypatch.setattr(DraftingSampler, "sample", watch)
    with drafting_llm(5, lambda seed, position, j: j != depth, texts) as llm:
        outputs = llm.generate(prompts, [params_in("long", seed=i + 1) for i in range(3)])
    assert ids(outputs) == answers
    by_seed = {i + 1: (prompt, answer) for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))}
    assert len(sampled) > 10
    for seed, position, words in sampled:
        prompt, answer = by_seed[seed]
        matcher = matcher_of(*SCHEMAS["long"])
        for token in answer[: position - len(prompt)]:
            assert matcher.accept(token)
        want = np.zeros(len(words), dtype=np.int32)
        matcher.fill(want)
        assert words == want.tolist()


# --- trigger, bound ---------------------------------------------------------------------------------------------------


def test_trigger_leaves_the_answer_free_until_it_comes():
    prompt = prompts_of(1, 9, seed=13)[0]
    free = solo_tokens(prompt, 12, ends=frozenset())
    if EOS in free[:8]:
        raise AssertionError("take another seed: the free answer ends too early")
    trigger = free[4:6]
    with grammar_llm() as llm:
        so_args = {"schema_type": "regex", "schema": SCHEMAS["word"][1], "trigger_token_ids": trigger}
        (output,) = llm.generate([prompt], SamplingParams(so_args=so_args, temperature=0, max_tokens=40))
        cut = llm.generate([prompt], SamplingParams(so_args=so_args, temperature=0, max_tokens=5))[0]
    head = free[:6]
    assert list(output.token_ids) == head + solo_in_grammar([*prompt, *head], 34, *SCHEMAS["word"])
    assert output.outputs[0].so_complete
    assert (cut.finish_reason, cut.outputs[0].so_complete) == ("length", False)


def test_bound_token_forces_the_rest_of_the_trigger():
    prompt = prompts_of(1, 9, seed=13)[0]
    free = solo_tokens(prompt, 12, ends=frozenset())
    bound = free[3]
    trigger = [ord("<"), ord("j"), ord(">")]
    so_args = {
        "schema_type": "regex",
        "schema": SCHEMAS["word"][1],
        "trigger_token_ids": trigger,
        "bound_token_id": bound,
    }
    with grammar_llm() as llm:
        (output,) = llm.generate([prompt], SamplingParams(so_args=so_args, temperature=0, max_tokens=40))
    head = free[: free.index(bound) + 1] + trigger
    assert list(output.token_ids) == head + solo_in_grammar([*prompt, *head], 40 - len(head), *SCHEMAS["word"])


# --- vocabularies and widths ------------------------------------------------------------------------------------------


class WideModel(ToyModel):
    """A head of any width; the token that the grammar wants has the lowest logit."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.vocab_size = width

    def logits(self, hidden: Any) -> Any:
        return np.tile(np.arange(self.vocab_size, dtype=np.float32), (len(hidden), 1))


@pytest.mark.parametrize("width", [320, 384])
@pytest.mark.parametrize("vocabulary", [300, 301, 319, 320])
def test_grammar_that_leaves_one_token_yields_it_whatever_the_widths(vocabulary, width):
    class Only:
        """Allows one token, and then an end; it also sets the bits that no token has."""

        def __init__(self, token: int) -> None:
            self.token = token
            self.taken: list[int] = []

        def accept(self, token: int) -> bool:
            good = token == (EOS if self.taken else self.token)
            if good:
                self.taken.append(token)
            return good

        def fill(self, mask: Any) -> None:
            if len(mask) != width // 32:
                raise AssertionError(f"{len(mask)} words for {width} columns")
            mask[:] = bits([EOS if self.taken else self.token, *range(vocabulary, width)], len(mask))

        def rollback(self, n: int) -> None:
            del self.taken[len(self.taken) - n :]

        def finished(self) -> bool:
            return self.taken[-1:] == [EOS]

        def matcher(self) -> Only:
            return Only(self.token)

    class Engine:
        def compile(self, so_args: Any) -> Only:
            return Only(int(so_args["schema"]))

    tokenizer = byte_tokenizer()
    tokenizer.vocab_size = vocabulary
    tokenizer.token_bytes += [b"?"] * (vocabulary - len(tokenizer.token_bytes))
    parts = {
        "grammar": lambda tokenizer, vocab_size: Engine(),
        "model": WideModel(width),
        "sampler": ToySampler(vocabulary),
        "hints": attrs.evolve(TOY_HINTS, vocab_size=width),
    }
    wanted = [0, 31, 32, 255, 258, vocabulary - 1]
    with grammar_llm(parts=parts) as made:
        llm = LLM.from_assembly(made.assembly, tokenizer)
        outputs = llm.generate([[1]] * len(wanted), [SamplingParams(regex=str(t), temperature=0) for t in wanted])
        llm.close()
    assert ids(outputs) == [[token, EOS] for token in wanted]


def test_no_grammar_engine_refuses_only_the_requests_that_need_one():
    with grammar_llm(parts={"grammar": None}) as llm:
        with pytest.raises(NotSupported, match="structured output needs a grammar engine"):
            llm.generate(["a"], SamplingParams(regex="a"))
        bad, good = llm.generate(
            [{"prompt": "a", "regex": "a"}, {"prompt": "b"}], SamplingParams(max_tokens=3, temperature=0)
        )
        check_idle(llm)
    assert (bad.finish_reason, bad.error.code) == ("input", "E_UNSUPPORTED")
    assert bad.error.remedy == (
        "in a clone: pip install --no-deps -r requirements-xgrammar.txt; "
        "elsewhere: pip install 'deepinfer-samplers[xgrammar]' (with triton, 1 GB)"
    )
    assert list(good.token_ids) == solo_tokens([257, ord("b")], 3)


def test_text_as_response_format_takes_the_default_grammar_away():
    prompt = {"prompt": "b", "response_format": {"type": "text"}}
    with grammar_llm() as llm:
        free, bound = llm.generate([prompt, {"prompt": "b"}], SamplingParams(regex="a", max_tokens=3, temperature=0))
    assert list(free.token_ids) == solo_tokens([257, ord("b")], 3)
    assert bound.text == "a"


def test_report_counts_masks_and_time():
    with grammar_llm() as llm:
        outputs = llm.generate(["a", "b"], params_in("word"))
        again = llm.generate(["c"], params_in("word"))
        report = llm.grammar_report
        times = llm.times
    tokens = sum(len(output.token_ids) for output in [*outputs, *again])
    # The second request joins the compilation of the first, or comes after it and finds its grammar.
    assert report.cached in (1, 2)
    assert (report.compiled, report.failed, report.masks) == (1, 0, tokens)
    assert report.fill_ns > 0
    assert times.grammar >= report.fill_ns
    assert str(report).startswith(f"grammars: 1 compiled, {report.cached} cached, 0 failed; ")


@pytest.mark.parametrize("num_draft", [0, 3])
def test_masks_keep_the_contract_and_leave_the_record_of_the_core_alone(num_draft, monkeypatch):
    prompts = prompts_of(4, 7, seed=14)
    texts = [prompt + whole("long", prompt) for prompt in prompts]
    params = [params_in("long", seed=i + 1) for i in range(3)] + [SamplingParams(temperature=0, max_tokens=30, seed=4)]
    sampler = DraftingSampler if num_draft else ToySampler
    original, seen = sampler.sample, []

    def sample(self: Any, logits: Any, inputs: Any) -> Any:
        inputs.validate(llm.built.engine.core.limits, Level.FULL)
        seen.append([None if rows is None else rows.tolist() for rows in inputs.grammar_rows or ()])
        return original(self, logits, inputs)

    monkeypatch.setattr(sampler, "sample", sample)
    made = drafting_llm(num_draft, PATTERNS["in rotation"], texts) if num_draft else grammar_llm()
    with made as llm:
        core = llm.built.engine.core
        pack = core.pack_sampler
        records = []
        monkeypatch.setattr(core, "pack_sampler", lambda step_id: records.append(pack(step_id)) or records[-1])
        outputs = llm.generate(prompts, params)
    assert all(output.error is None for output in outputs)
    assert all(record.grammar_mask is None and record.grammar_rows is None for record in records)
    assert {len(rows) for rows in seen} <= {0, num_draft + 1}
    assert any(rows and rows[0] and 3 not in rows[0] for rows in seen)  # the free request has no mask
    if num_draft:
        assert any(rows[-1] for rows in seen if rows)  # all drafts of a request were in its grammar


def test_toy_head_is_wider_than_its_vocabulary():
    assert TOKENS < VOCAB  # so that masks of these tests have bits that no token has
