"""Grammar engines that fail, and grammars that lead nowhere: only their own requests end (``spec/sampling.md`` 3.6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from engine_toys import EOS, Faulty, ToySampler, byte_tokenizer, check_idle, prompts_of, solo_tokens
from grammar_toys import FaultyEngine, drafting_llm, grammar_llm, solo_in_grammar
from scoring_toys import ScoringSampler
from tiny_grammar import TinyEngine

from deepinfer_core.errors import HookReturnError
from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_core.requests.outputs import RequestOutput

pytestmark = pytest.mark.usefixtures("overlap")

BAD, GOOD = "[a-z]{20}", "[0-9]{12}"
OWNER = "toy (acme-grammar 0.1)"
Fault = Callable[[str, int, Any], Any]


def run_beside(fault: Fault, **more: Any) -> RequestOutput:
    """The result of the request whose grammar has the fault; the two beside it must be what they are alone."""
    prompts = prompts_of(3, 8, seed=21)
    params = [
        SamplingParams(temperature=0, max_tokens=14),
        SamplingParams(temperature=0, max_tokens=30, regex=BAD, **more),
        SamplingParams(temperature=0, max_tokens=14, regex=GOOD),
    ]
    with grammar_llm(lambda tokenizer, vocab_size: FaultyEngine(tokenizer, vocab_size, BAD, fault)) as llm:
        free, bad, good = llm.generate(prompts, params)
        (again,) = llm.generate([prompts[2]], params[2])
        check_idle(llm)
    assert list(free.token_ids) == solo_tokens(prompts[0], 14)
    assert list(good.token_ids) == list(again.token_ids) == solo_in_grammar(prompts[2], 14, "regex", GOOD)
    return bad


def raising(method: str, call: int) -> Fault:
    def fault(name: str, number: int, go: Any) -> Any:
        if (name, number) == (method, call):
            raise OSError("libacme: gone")
        return go()

    return fault


def returning(method: str, call: int, value: object) -> Fault:
    return lambda name, number, go: value if (name, number) == (method, call) else go()


def test_compile_that_raises_ends_its_request_with_the_compilers_message():
    bad = run_beside(raising("compile", 1))
    assert (bad.finish_reason, bad.finish_detail, bad.token_ids) == ("grammar", "so_invalid_grammar", ())
    assert str(bad.error) == (
        "E_GRAMMAR: request 1: the regex grammar does not compile\n"
        "  reason: libacme: gone\n"
        "  remedy: correct the grammar, or ask without it"
    )
    assert bad.error.exit_status == 1
    assert bad.outputs[0].so_complete is None


@pytest.mark.parametrize(("value", "got"), [(None, "None"), (7, "int"), ({"matcher": 1}, "dict")])
def test_compile_that_returns_no_grammar_is_named(value, got):
    bad = run_beside(returning("compile", 1, value))
    assert bad.finish_detail == "so_invalid_grammar"
    assert f"grammar.compile returned {got}, expected a Grammar" in bad.error.reason


@pytest.mark.parametrize(
    ("fault", "op"),
    [
        (raising("matcher", 1), "grammar.matcher"),
        (returning("matcher", 1, None), "grammar.matcher"),
        (raising("fill", 1), "matcher.fill"),
        (raising("fill", 4), "matcher.fill"),
        (raising("accept", 1), "matcher.accept"),
        (raising("accept", 6), "matcher.accept"),
        (raising("finished", 3), "matcher.accept"),
        (returning("accept", 2, None), "matcher.accept"),
        (returning("finished", 2, 1), "matcher.accept"),
        (returning("finished", 2, np.bool_(False)), "matcher.accept"),
    ],
)
def test_matcher_that_fails_ends_its_request_only(fault, op):
    bad = run_beside(fault)
    assert (bad.finish_reason, bad.finish_detail) == ("grammar", "so_runtime_error")
    assert bad.error.code == "E_GRAMMAR"
    assert bad.error.what.startswith(f"request 1: {op} of {OWNER} failed (token ")
    assert bad.error.details["op"] == op
    assert bad.error.details["plugin"] == OWNER
    assert f"report it to the authors of {OWNER}" in bad.error.remedy
    tokens = solo_in_grammar(prompts_of(3, 8, seed=21)[1], 30, "regex", BAD)
    assert list(bad.token_ids) == tokens[: len(bad.token_ids)]  # it keeps what it has
    assert bad.error.details["last_tokens"] == list(bad.token_ids)[: bad.error.details["output_index"] - 1]


@pytest.mark.parametrize("call", [1, 5])
def test_matcher_that_refuses_a_sampled_token_ends_its_request(call):
    bad = run_beside(returning("accept", call, False))
    token = bad.token_ids[call - 1]
    assert (bad.finish_reason, bad.finish_detail, len(bad.token_ids)) == ("grammar", "so_runtime_error", call)
    assert bad.error.what == f"request 1: the grammar does not take token {token}, the answer's number {call}"
    assert (bad.error.details["token"], bad.error.details["output_index"]) == (token, call)


@pytest.mark.parametrize("forced", [[ord("7")], [ord("a"), ord("b"), ord("!")], [ord("a"), EOS]])
def test_forced_token_that_the_grammar_does_not_take_is_the_callers(forced):
    prompts = prompts_of(2, 8, seed=21)
    constrained = SamplingParams(temperature=0, max_tokens=9, regex="[a-z]{6}", forced_token_ids=forced)
    with grammar_llm(parts={"sampler": ScoringSampler()}) as llm:
        bad, good = llm.generate(prompts, [constrained, SamplingParams(temperature=0, max_tokens=9)])
        check_idle(llm)
    if forced[-1] == EOS:  # it ends the answer, which is then no whole one
        assert (bad.finish_detail, bad.outputs[0].so_complete, bad.error) == ("eos", False, None)
    else:
        number, token = len(forced), forced[-1]
        assert (bad.finish_reason, bad.finish_detail, len(bad.token_ids)) == ("grammar", "so_dead_end", number)
        assert str(bad.error) == (
            f"E_GRAMMAR: request 0: the grammar does not take the forced token {token}, the answer's number {number}\n"
            "  reason: forced_token_ids leaves the grammar there, so no answer has both\n"
            "  remedy: correct forced_token_ids or the grammar, or give only one of them"
        )
    assert good.finish_reason == "length"


def test_sampler_that_ignores_the_mask_is_noticed():
    def blind(name: str, number: int, go: Any) -> Any:
        return go()

    class Blind(ToySampler):
        def sample(self, logits: Any, inputs: Any) -> Any:
            inputs.grammar_rows = None
            return super().sample(logits, inputs)

    with grammar_llm(parts={"sampler": Faulty(Blind(), blind, "sample")}) as llm:
        (output,) = llm.generate(["hello"], SamplingParams(regex="q{30}", temperature=0, max_tokens=9))
        check_idle(llm)
    assert output.finish_detail == "so_runtime_error"
    assert "mask and matcher disagree" in output.error.reason


@pytest.mark.parametrize("call", [1, 3])
def test_dead_end_ends_its_request_with_its_last_tokens(call):
    def fault(name: str, number: int, go: Any) -> Any:
        if name == "fill" and number == call:
            return None  # nothing is allowed
        return go()

    bad = run_beside(fault)
    assert (bad.finish_reason, bad.finish_detail, len(bad.token_ids)) == ("grammar", "so_dead_end", call - 1)
    assert str(bad.error) == (
        f"E_GRAMMAR: request 1: no token of the vocabulary continues the grammar (token {call})\n"
        "  reason: the grammar allows none, or only tokens that are excluded otherwise\n"
        "  remedy: allow more in the grammar, or exclude fewer tokens"
    )
    assert bad.error.details["last_tokens"] == list(bad.token_ids)


def test_mask_that_allows_only_rows_without_a_token_is_a_dead_end():
    def fault(name: str, number: int, go: Any) -> Any:
        return go()

    class Beyond(TinyEngine):
        def compile(self, so_args: Any) -> Any:
            made = super().compile(so_args)
            made.allowed = lambda state: [258, 259]  # two rows of the head that no token has
            return made

    with grammar_llm(Beyond) as llm:
        (output,) = llm.generate(["a"], SamplingParams(regex="a"))
        check_idle(llm)
    assert output.finish_detail == "so_dead_end"


def test_token_that_is_excluded_elsewhere_makes_a_dead_end_of_its_grammar():
    class Excludes(ToySampler):
        """What a blacklist of the sampler does."""

        def sample(self, logits: Any, inputs: Any) -> Any:
            logits = np.array(logits)
            logits[:, ord("b")] = -np.inf
            return super().sample(logits, inputs)

    with grammar_llm(parts={"sampler": Excludes()}) as llm:
        bad, good = llm.generate(["x", "x"], [SamplingParams(regex="ab"), SamplingParams(regex="ac", temperature=0)])
        check_idle(llm)
    assert (bad.finish_reason, bad.finish_detail, bad.text) == ("grammar", "so_dead_end", "a")
    assert good.text == "ac"


@pytest.mark.parametrize(
    ("fault", "op"),
    [
        (raising("rollback", 2), "matcher.rollback"),
        (raising("accept", 9), "matcher.accept"),
        (raising("fill", 11), "matcher.fill"),
        (returning("accept", 9, "no"), "matcher.accept"),
    ],
)
def test_matcher_that_fails_among_drafts_ends_its_request_only(fault, op):
    prompts = prompts_of(3, 8, seed=21)
    schemas = [GOOD, BAD, GOOD]
    answers = [solo_in_grammar(prompt, 22, "regex", text) for prompt, text in zip(prompts, schemas, strict=True)]
    texts = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    params = [SamplingParams(temperature=0, max_tokens=22, regex=text, seed=i + 1) for i, text in enumerate(schemas)]
    made = drafting_llm(
        3, lambda seed, position, j: (position + j) % 4 != 0, texts, lambda t, v: FaultyEngine(t, v, BAD, fault)
    )
    with made as llm:
        outputs = llm.generate(prompts, params)
        check_idle(llm)
    bad = outputs[1]
    assert (bad.finish_reason, bad.finish_detail, bad.error.details["op"]) == ("grammar", "so_runtime_error", op)
    assert list(bad.token_ids) == answers[1][: len(bad.token_ids)]
    assert [list(output.token_ids) for output in outputs[::2]] == answers[::2]


def test_long_answer_keeps_only_its_last_tokens_in_the_failure():
    def fault(name: str, number: int, go: Any) -> Any:
        return None if name == "fill" and number == 51 else go()

    with grammar_llm(lambda t, v: FaultyEngine(t, v, "a{60}", fault)) as llm:
        (output,) = llm.generate(["a"], SamplingParams(regex="a{60}", max_tokens=70))
    assert (len(output.token_ids), len(output.error.details["last_tokens"])) == (50, 32)


def test_failure_of_one_sample_leaves_the_others():
    """The matchers of a prompt's samples are made in order, and each call of ``accept`` belongs to one of them."""
    broken: list[Any] = []

    class Engine(TinyEngine):
        def compile(self, so_args: Any) -> Any:
            grammar = super().compile(so_args)
            make = grammar.matcher

            def matcher() -> Any:
                made = make()
                if len(broken) < 1:
                    broken.append(made)
                    made.accept = lambda token: False
                return made

            grammar.matcher = matcher
            return grammar

    with grammar_llm(Engine) as llm:
        (output,) = llm.generate(["a"], SamplingParams(regex="[a-z]{6}", n=3))
        check_idle(llm)
    assert [sample.finish_detail for sample in output.outputs] == ["so_runtime_error", "eos", "eos"]
    assert all(len(sample.text) == 6 for sample in output.outputs[1:])


def test_engine_that_cannot_be_made_ends_the_requests_that_ask_and_is_tried_once():
    tried = []

    def make(tokenizer: Any, vocab_size: int) -> Any:
        tried.append(vocab_size)
        raise OSError("libacme: gone")

    with grammar_llm(make) as llm:
        outputs = llm.generate(["a", "b"], [SamplingParams(regex="a"), SamplingParams(regex="b")])
        assert llm.generate(["a"], SamplingParams(max_tokens=2))[0].ok
        check_idle(llm)
    assert tried == [260]
    assert [output.finish_detail for output in outputs] == ["so_runtime_error"] * 2
    assert outputs[1].error.what == f"request 1: the grammar engine of {OWNER} could not be made"
    assert outputs[1].error.reason.startswith("OSError: libacme: gone (raised at ")


def test_typed_error_of_making_the_engine_passes_unchanged():
    def make(tokenizer: Any, vocab_size: int) -> Any:
        raise HookReturnError("returned None, expected a GrammarEngine", remedy="ask acme")

    with grammar_llm(make) as llm:
        (output,) = llm.generate(["a"], SamplingParams(regex="a"))
    assert str(output.error) == ("E_HOOK_RETURN: returned None, expected a GrammarEngine\n  remedy: ask acme")


def test_typed_error_of_the_compiler_keeps_its_reason_and_remedy():
    from deepinfer_core.errors import InvalidParameter

    class Engine(TinyEngine):
        def compile(self, so_args: Any) -> Any:
            raise InvalidParameter("$.a has pattern and maxLength", remedy="drop one", details={"path": "$.a"})

    with grammar_llm(Engine) as llm:
        (output,) = llm.generate(["a"], SamplingParams(regex="a"))
    assert (output.error.reason, output.error.remedy) == ("$.a has pattern and maxLength", "drop one")
    assert output.error.details["path"] == "$.a"


def test_matcher_that_fails_behind_the_end_changes_only_the_flag():
    def fault(name: str, number: int, go: Any) -> Any:
        if name == "fill" and number == 4:
            raise OSError("gone")
        return go()

    with grammar_llm(lambda t, v: FaultyEngine(t, v, "a{3}", fault)) as llm:
        (output,) = llm.generate(["a"], SamplingParams(regex="a{3}", max_tokens=3))
    assert (output.finish_reason, output.text, output.outputs[0].so_complete) == ("length", "aaa", False)


def test_four_bad_grammars_beside_plain_requests_fail_alone_and_a_good_one_works():
    bad = ["[a-", "(a", "a)", "*"]
    params = [SamplingParams(temperature=0, max_tokens=8)] * 2 + [SamplingParams(regex=text) for text in bad]
    with grammar_llm() as llm:
        outputs = llm.generate(["p", "q", *"abcd"], params)
        after = llm.generate(["a"], SamplingParams(regex="ok"))[0]
        check_idle(llm)
    assert [list(output.token_ids) for output in outputs[:2]] == [
        solo_tokens([257, byte], 8, ends=frozenset({EOS})) for byte in b"pq"
    ]
    assert [output.finish_detail for output in outputs[2:]] == ["so_invalid_grammar"] * 4
    assert all(output.error.reason for output in outputs[2:])
    assert after.text == "ok"
    assert byte_tokenizer().eos_ids == frozenset({EOS})
