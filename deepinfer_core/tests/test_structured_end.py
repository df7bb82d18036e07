"""How answers in grammars end: by themselves, at a limit, at a stop, before ``min_tokens``."""

from __future__ import annotations

import warnings

import pytest
from engine_toys import (
    EOS,
    check_idle,
)
from grammar_toys import grammar_llm

from deepinfer_core.parameters.sampling_params import SamplingParams

pytestmark = pytest.mark.usefixtures("overlap")


def test_answer_cut_by_max_tokens_says_whether_it_is_complete():
    with grammar_llm() as llm:
        cut, whole_one = llm.generate(
            ["x", "x"], [SamplingParams(regex="a{9}", max_tokens=4), SamplingParams(regex="a{4}b?", max_tokens=4)]
        )
    assert (cut.text, cut.finish_reason, cut.outputs[0].so_complete) == ("aaaa", "length", False)
    assert (whole_one.text, whole_one.finish_reason, whole_one.outputs[0].so_complete) == ("aaaa", "length", True)


def test_answer_that_a_stop_string_cuts_is_not_complete():
    with grammar_llm() as llm:
        (output,) = llm.generate(["x"], SamplingParams(regex="a{3}b*", stop="aa"))
    assert (output.text, output.finish_detail, output.outputs[0].so_complete) == ("", "stop_string", False)


def test_stop_token_of_the_caller_ends_a_sentence_that_may_end_there():
    with grammar_llm() as llm:
        good, bad = llm.generate(
            ["x", "x"],
            [
                SamplingParams(regex="ab?c?", stop_token_ids=[ord("a")]),
                SamplingParams(regex="abc", stop_token_ids=[ord("b")]),
            ],
        )
    assert (good.finish_detail, good.outputs[0].so_complete) == ("stop_token", True)
    assert (bad.finish_detail, bad.outputs[0].so_complete) == ("stop_token", False)


def test_min_tokens_longer_than_the_grammar_gives_way_with_a_warning():
    with grammar_llm() as llm, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (output,) = llm.generate(["x"], SamplingParams(regex="ab", min_tokens=9, max_tokens=12))
        check_idle(llm)
    assert (output.text, output.finish_detail, output.outputs[0].so_complete) == ("ab", "eos", True)
    assert list(output.token_ids) == [ord("a"), ord("b"), EOS]
    (said,) = [str(item.message) for item in caught if "W_GRAMMAR_END" in str(item.message)]
    assert said == (
        "W_GRAMMAR_END: request 0: its grammar allows nothing but an end within the first min_tokens (9) tokens; it "
        "ends there"
    )


def test_warning_of_a_step_is_no_error_of_the_step_where_warnings_are_errors(capsys):
    with grammar_llm() as llm, warnings.catch_warnings():
        warnings.simplefilter("error")
        (output,) = llm.generate(["x"], SamplingParams(regex="ab", min_tokens=9, max_tokens=12))
        check_idle(llm)
    assert (output.text, output.error) == ("ab", None)
    assert capsys.readouterr().err.startswith("deepinfer: W_GRAMMAR_END: request 0: ")


def test_min_tokens_keep_an_optional_end_away():
    with grammar_llm() as llm:
        (output,) = llm.generate(["x"], SamplingParams(regex="a{1,20}", min_tokens=9, max_tokens=12, temperature=0))
    assert len(output.text) >= 9
