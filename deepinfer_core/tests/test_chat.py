"""``LLM.chat``: results in order, streams that add up, stop strings in the content only."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import defaultdict
from typing import Any

import pytest
from chat_toys import DSML, END, chat_llm, chat_tokenizer
from engine_toys import toy_llm

from deepinfer_core.chat import AnswerDelta, ChatOutput
from deepinfer_core.errors import InvalidParameter, LibraryMissing, ModelCannotChat
from deepinfer_core.llm import LLM
from deepinfer_core.parameters.sampling_params import SamplingParams

pytest.importorskip("deepseek_recipe", reason="pip install 'deepinfer-core[chat]' to test chat")

USER = {"role": "user", "content": "hi"}
TOOL = {"name": "run", "parameters": {"type": "object"}}
CALL = (
    f'\n\n<{DSML} calls>\n<{DSML} invoke name="run">\n<{DSML} parameter name="cmd" string="true">ls 2>&1</{DSML} '
    f"parameter>\n</{DSML} invoke>\n</{DSML} calls>"
)
LONG = SamplingParams(max_tokens=2000, seed=0)


def one(answer: str, params: SamplingParams | None = LONG, **options: Any) -> ChatOutput:
    with chat_llm(answer) as llm:
        (output,) = llm.chat([USER], params, **options)
    return output


def test_chat_splits_reasoning_content_and_calls() -> None:
    output = one(f"why é{END}so 🙂{CALL}", tools=[TOOL])
    assert output.error is None
    assert (output.reasoning, output.content, output.finish_reason) == ("why é", "so 🙂", "tool_calls")
    (call,) = output.tool_calls
    assert call.parsed == {"cmd": "ls 2>&1"}
    assert output.ok
    tokens = len(output.output.token_ids)
    reasoning = len("why é".encode())
    usage = output.usage
    assert (usage.completion_tokens, usage.reasoning_tokens) == (tokens, reasoning)
    assert usage.prompt_tokens == len(output.output.prompt_token_ids)


def test_answer_is_the_next_turns_message() -> None:
    message = one(f"why{END}so{CALL}", tools=[TOOL]).as_message()
    call = message["tool_calls"][0]  # type: ignore[index]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "files"}
    with chat_llm("fine", tokenizer=chat_tokenizer()) as llm:
        (output,) = llm.chat([USER, json.loads(json.dumps(message)), result], LONG, tools=[TOOL], thinking=False)
    assert output.error is None
    assert output.content == "fine"


def test_continued_answer_gives_what_is_new_and_the_whole_message() -> None:
    with chat_llm("tial") as llm:
        (output,) = llm.chat([USER, {"role": "assistant", "content": "par"}], LONG, thinking=False, continue_last=True)
    assert output.content == "tial"
    assert output.as_message() == {"role": "assistant", "content": "partial"}


def test_answer_cut_in_its_reasoning_has_no_content() -> None:
    output = one("still thinking", SamplingParams(max_tokens=5))
    assert (output.reasoning, output.content, output.finish_reason) == ("still", "", "length")
    assert output.usage.reasoning_tokens == 5


@pytest.mark.parametrize("hidden", [(), (END, DSML)])
def test_marks_that_a_tokenizer_hides_are_seen(hidden: tuple[str, ...]) -> None:
    with chat_llm(f"why{END}so{CALL}", tokenizer=chat_tokenizer(hidden=hidden)) as llm:
        (output,) = llm.chat([USER], LONG, tools=[TOOL])
    assert (output.reasoning, output.content, len(output.tool_calls)) == ("why", "so", 1)


def test_stop_string_counts_in_the_content_only() -> None:
    answer = f"a stop in reasoning{END}said stop there{CALL}"
    output = one(answer, SamplingParams(max_tokens=500, stop=["stop"]), tools=[TOOL])
    assert (output.reasoning, output.content) == ("a stop in reasoning", "said ")
    assert output.choices[0].completion.finish_detail == "stop_string"
    assert one(answer, SamplingParams(max_tokens=500, stop=["ls"]), tools=[TOOL]).finish_reason == "tool_calls"


def test_results_come_in_order_also_for_conversations_that_fail() -> None:
    good: Any = [USER]
    with chat_llm("fine") as llm:
        conversations = [good, [], {"messages": good, "id": "x"}, [{"role": "boss"}], {"id": 7}]
        outputs = llm.chat(conversations, SamplingParams(max_tokens=99), thinking=False)
    assert [output.index for output in outputs] == [0, 1, 2, 3, 4]
    assert [output.content for output in outputs] == ["fine", "", "fine", "", ""]
    assert [output.error and output.error.code for output in outputs] == [None, "E_MESSAGES", None, *["E_MESSAGES"] * 2]
    assert [output.request_id for output in outputs] == ["0", "1", "x", "3", "7"]
    assert outputs[1].finish_reason == "input"


def test_conversation_may_have_settings_of_its_own() -> None:
    with chat_llm(f"why{END}so") as llm:
        first, second, third = llm.chat(
            [
                {"messages": [USER], "thinking": False, "max_tokens": 2},
                {"messages": [USER], "max_tokens": 0},
                {"messages": [USER], "efort": "low"},
            ]
        )
    assert (first.content, first.finish_reason) == ("wh", "length")
    assert second.error is not None
    assert "max_tokens is 0" in str(second.error)
    assert third.error is not None
    assert "unknown sampling parameter 'efort'" in str(third.error)


def test_without_parameters_an_answer_ends_at_its_end() -> None:
    output = one("x" * 300, None, thinking=False)
    assert (len(output.content), output.finish_reason) == (300, "stop")


def test_without_parameters_an_answer_ends_at_the_context_limit() -> None:
    with chat_llm("endless", max_model_len=200) as llm:
        (output,) = llm.chat([USER], SamplingParams(max_tokens=10_000, ignore_eos=True), thinking=False)
        assert (output.finish_reason, output.choices[0].completion.finish_detail) == ("length", "model_length")
        (limited,) = llm.chat({"messages": [USER], "ignore_eos": True}, thinking=False)
    assert limited.finish_reason == "length"
    assert len(limited.output.token_ids) + len(limited.output.prompt_token_ids) == 200


def test_conversation_that_is_too_long_is_refused() -> None:
    with chat_llm("fine", max_model_len=100) as llm:
        (output,) = llm.chat([{"role": "user", "content": "x" * 200}], thinking=False)
    assert output.finish_reason == "too_long"
    assert "the prompt has" in str(output.error)


# --- streams ----------------------------------------------------------------------------------------------------


def collected(llm: LLM, *args: Any, **options: Any) -> tuple[dict[tuple[int, int], list[Any]], list[ChatOutput]]:
    """What the chunks of each choice add up to, and the outputs in order."""
    sums: dict[tuple[int, int], list[Any]] = defaultdict(lambda: ["", "", defaultdict(list)])
    outputs: dict[int, ChatOutput] = {}
    for chunk in llm.chat_stream(*args, **options):
        entry = sums[chunk.index, chunk.choice]
        entry[0] += chunk.reasoning
        entry[1] += chunk.content
        for call in chunk.tool_calls:
            entry[2][call.index].append(call)
        if chunk.output is not None:
            outputs[chunk.index] = chunk.output
    return sums, [outputs[index] for index in sorted(outputs)]


def test_stream_adds_up_to_the_whole_answer() -> None:
    answers = (f"why é{END}so 🙂{CALL}", f"日本{END}\n\ntext", f"only reasoning\n<{DSML}")
    params = [SamplingParams(max_tokens=900, seed=k) for k in (0, 1, 2)]
    with chat_llm(*answers) as llm:
        whole = llm.chat([[USER]] * 3, params, tools=[TOOL])
    with chat_llm(*answers) as llm:
        sums, outputs = collected(llm, [[USER]] * 3, params, tools=[TOOL])
    assert [output.choices for output in outputs] == [output.choices for output in whole]
    assert any(output.tool_calls for output in whole)
    for output in outputs:
        for choice in output.choices:
            reasoning, content, calls = sums[output.index, choice.index]
            assert (reasoning, content) == (choice.reasoning, choice.content)
            assert ["".join(delta.arguments for delta in calls[i]) for i in sorted(calls)] == [
                call.arguments for call in choice.tool_calls
            ]


def test_several_answers_are_parsed_each_by_itself() -> None:
    answers = (f"a{END}b", f"why{END}so{CALL}", "x")
    with chat_llm(*answers) as llm:
        sums, (output,) = collected(llm, [USER], SamplingParams(max_tokens=900, seed=1, n=3), tools=[TOOL])
    assert len(output.choices) == 3
    for choice in output.choices:
        seed = choice.completion.seed
        assert seed is not None
        said = answers[seed % 3].removesuffix(CALL)
        assert (choice.reasoning, choice.content) == tuple(said.split(END) if END in said else (said, ""))
        assert sums[0, choice.index][:2] == [choice.reasoning, choice.content]
    assert output.as_record()["choices"] == [choice.as_record() for choice in output.choices]


def test_closed_stream_aborts_the_answer() -> None:
    with chat_llm("endless") as llm:
        params = SamplingParams(max_tokens=3000, ignore_eos=True)
        with llm.chat_stream([USER], params, thinking=False) as stream:
            assert next(chunk for chunk in stream if chunk.content).delta == AnswerDelta("e")
        assert list(stream) == []
        assert llm.built.engine.core.stats().running == 0


# --- what a call refuses ----------------------------------------------------------------------------------------


def test_model_that_cannot_chat_is_an_error_of_the_call() -> None:
    with toy_llm() as llm, pytest.raises(ModelCannotChat, match="its tokenizer lacks <｜begin▁of▁sentence｜>, <｜end"):
        llm.chat([USER])


def test_wrong_option_is_an_error_of_the_call() -> None:
    with chat_llm("x") as llm, pytest.raises(InvalidParameter, match="effort is 'much'; allowed: none or one of low"):
        llm.chat([USER], effort="much")


def test_missing_library_is_an_error_of_the_call_and_prompts_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepseek_recipe", None)
    with chat_llm("fine") as llm:
        with pytest.raises(LibraryMissing, match="chat needs the package deepseek-recipe"):
            llm.chat([USER])
        assert llm.generate("hi", LONG)[0].text == "fine"


# --- the shipped model ------------------------------------------------------------------------------------------

NEEDED = ("torch", "deepinfer_cpu", "deepinfer_v41", "deepinfer_samplers")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]


@pytest.mark.skipif(bool(MISSING), reason=f"install {', '.join(MISSING)} to run the shipped model")
def test_shipped_model_answers_as_it_was_trained_to() -> None:
    question = [{"role": "user", "content": "What does `os.path.join(a, *p)` do?"}]
    params = SamplingParams(temperature=0, max_tokens=60)
    with LLM(backend="cpu") as llm:
        (plain,) = llm.chat(question, params, thinking=False)
        (thinking,) = llm.chat(question, params)
        raw = llm.generate(
            "<｜begin▁of▁sentence｜><｜User｜>What does `os.path.join(a, *p)` do?<｜Assistant｜></think>", params
        )
    assert (plain.content, plain.reasoning, plain.finish_reason) == (
        "Copy a directory, return the path tofileobj.",
        "",
        "stop",
    )
    assert raw[0].prompt_token_ids == plain.output.prompt_token_ids
    assert raw[0].token_ids == plain.output.token_ids
    assert thinking.reasoning.startswith("The user asks about the function")
    assert thinking.content
    assert END not in thinking.content + thinking.reasoning
