"""Conversations as token ids: turns, continued answers, and control tokens that are only spelled."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from chat_toys import BOS, CONTROL, DSML, END, EOS, THINK, chat_tokenizer, control_ids
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer_core.chat import ChatEncoder, ChatOptions, ChatPrompt, Conversation
from deepinfer_core.errors import InvalidMessages, InvalidParameter, LibraryMissing, ModelCannotChat, NotSupported

pytest.importorskip("deepseek_recipe", reason="pip install 'deepinfer-core[chat]' to test chat")

USER = {"role": "user", "content": "hi"}
DONE = {"role": "assistant", "content": "done", "reasoning_content": "why"}
PAR = {"role": "assistant", "content": "par"}
CALL = {"id": "c1", "type": "function", "function": {"name": "run", "arguments": '{"cmd": "ls 2>&1"}'}}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "out"}
TOOL = {"name": "run", "description": "Runs.", "parameters": {"type": "object", "properties": {"cmd": {}}}}
TOKENIZER = chat_tokenizer()
ENCODER = ChatEncoder(TOKENIZER)


def prompt_of(messages: Any, **options: Any) -> ChatPrompt:
    return ENCODER.encode(Conversation(messages, ChatOptions(**options)), max_model_len=100_000)


def text_of(messages: Any, **options: Any) -> str:
    return prompt_of(messages, **options).text


def refusal(messages: Any, **options: Any) -> str:
    with pytest.raises(InvalidMessages) as caught:
        prompt_of(messages, **options)
    return f"{caught.value.what}; {caught.value.reason}".removesuffix("; ")


# --- whose turn -------------------------------------------------------------------------------------------------


def test_prompt_of_a_question_opens_a_turn() -> None:
    assert text_of([USER], thinking=False) == f"{BOS}<｜User｜>hi<｜Assistant｜>{END}"
    assert text_of([USER]).endswith(f"<｜User｜>hi<｜Assistant｜>{THINK}")


def test_prompt_after_a_finished_answer_opens_a_new_turn() -> None:
    want = f"{BOS}<｜User｜>hi<｜Assistant｜>{END}done{EOS}<｜Assistant｜>{END}"
    assert text_of([USER, DONE], thinking=False) == want
    assert text_of([USER, DONE]).endswith(f"done{EOS}<｜Assistant｜>{THINK}")


@pytest.mark.parametrize("thinking", [False, True])
def test_continued_answer_ends_the_prompt_without_an_end_mark(thinking: bool) -> None:
    prompt = prompt_of([USER, PAR], thinking=thinking, continue_last=True)
    assert prompt.text.endswith("par")
    assert EOS not in prompt.text
    assert bytes(prompt.token_ids[-3:]) == b"par"
    assert not prompt.starts_in_reasoning
    assert prompt.begun == {"content": "par", "reasoning": ""}


def test_prefix_of_the_last_message_means_to_continue_it() -> None:
    assert text_of([USER, {**PAR, "prefix": True}]) == text_of([USER, PAR], continue_last=True)
    assert text_of([USER, {**PAR, "prefix": False}]) == text_of([USER, PAR])


@pytest.mark.parametrize("content", ["", None])
def test_continued_reasoning_stays_open(content: str | None) -> None:
    prompt = prompt_of([USER, {"role": "assistant", "content": content, "reasoning_content": "so"}], continue_last=True)
    assert prompt.text.endswith(f"<｜Assistant｜>{THINK}so")
    assert prompt.starts_in_reasoning


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([USER], "messages[0] is to be continued and is a user message"),
        ([USER, DONE, USER], "messages[2] is to be continued and is a user message"),
        ([USER, {"role": "assistant", "tool_calls": [CALL]}], "messages[1] is to be continued and has tool calls"),
        ([USER, {"role": "assistant", "tool_calls": [CALL]}, RESULT], "messages[2] is to be continued and is a tool"),
    ],
)
def test_continuing_what_is_no_answer_is_refused(messages: Any, message: str) -> None:
    assert refusal(messages, continue_last=True).startswith(message)


def test_continuing_with_tools_is_refused() -> None:
    message = "the messages are no conversation; Function call should not be used with prefix"
    assert refusal([USER, PAR], tools=[TOOL], continue_last=True) == message


def test_prefix_before_the_end_is_refused() -> None:
    assert refusal([{**PAR, "prefix": True}, USER]) == "messages[0] has prefix and is not the last message"


# --- thinking and tools -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("effort", "number"), [(None, 75), ("low", 50), ("high", 75), ("max", 100)])
def test_effort_is_said_in_the_prompt(effort: str | None, number: int) -> None:
    assert f"Reasoning Effort: {number} " in text_of([USER], effort=effort)


def test_effort_without_thinking_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="effort is low and thinking is off"):
        ChatOptions(thinking=False, effort="low")


@pytest.mark.parametrize(
    ("field", "value"),
    [("effort", "medium"), ("thinking", 1), ("continue_last", "yes"), ("tool_choice", "some"), ("tools", [1])],
)
def test_option_outside_its_range_names_field_and_range(field: str, value: object) -> None:
    with pytest.raises(InvalidParameter, match=f"{field} is .*allowed: "):
        ChatOptions(**{field: value})  # type: ignore[arg-type]


def test_tools_are_shown_with_their_schema() -> None:
    text = text_of([USER], tools=[TOOL])
    assert f"<{DSML} calls>" in text
    assert '{"name": "run", "description": "Runs."' in text
    assert text == text_of([USER], tools=[{"type": "function", "function": TOOL}])


def test_tool_choice_none_hides_the_tools_and_looks_for_no_calls() -> None:
    prompt = prompt_of([USER], tools=[TOOL], tool_choice="none")
    assert DSML not in prompt.text
    assert prompt.dsml_id is None


def test_required_tool_choice_opens_the_calls() -> None:
    prompt = prompt_of([USER], tools=[TOOL], tool_choice="required", thinking=False)
    assert prompt.text.endswith(f"{END}\n\n<{DSML} calls>\n")
    with pytest.raises(InvalidParameter, match="there are no tools"):
        ChatOptions(tool_choice="required")


def test_history_of_a_call_is_written_in_the_v41_form() -> None:
    text = text_of([USER, {"role": "assistant", "tool_calls": [CALL]}, RESULT], tools=[TOOL])
    call = f'<{DSML} invoke name="run">\n<{DSML} parameter name="cmd" string="true">ls 2>&1</{DSML} parameter>\n'
    assert call in text
    assert text.endswith(f"<｜User｜><tool_result>out</tool_result><｜Assistant｜>{THINK}")


def test_arguments_as_a_mapping_equal_arguments_as_text() -> None:
    given = {"id": "c1", "function": {"name": "run", "arguments": {"cmd": "ls 2>&1"}}}
    first, second = (
        text_of([USER, {"role": "assistant", "tool_calls": [call]}, RESULT], tools=[TOOL]) for call in (CALL, given)
    )
    assert first == second


# --- control tokens ---------------------------------------------------------------------------------------------

PIECES = [*CONTROL, "<｜image｜>", "<", "｜", ">", "a", " ", "\n", "é", "🙂"]
SPELLED = st.lists(st.sampled_from(PIECES), max_size=12).map(lambda pieces: "".join(pieces) + ".")


def everywhere(text: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A conversation with ``text`` in every place that a caller fills."""
    arguments = json.dumps({"cmd" + text: text, "more": {text: [text]}}, ensure_ascii=False)
    call = {"id": "c1" + text, "type": "function", "function": {"name": "run" + text, "arguments": arguments}}
    messages = [
        {"role": "system", "content": text},
        {"role": "latest_reminder", "content": text},
        {"role": "user", "content": [{"type": "text", "text": text}, {"type": "text", "text": text}]},
        {"role": "assistant", "content": text, "reasoning_content": text, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1" + text, "content": text},
        {"role": "assistant", "content": text},
    ]
    tool = {"name": "run", "description": text, "parameters": {"type": "object", "properties": {"p" + text: {}}}}
    return messages, [tool]


@given(SPELLED, st.booleans(), st.booleans())
@settings(deadline=None, max_examples=40)
def test_spelled_control_tokens_add_no_control_ids(text: str, thinking: bool, continue_last: bool) -> None:
    (messages, tools), (plain, plain_tools) = everywhere(text), everywhere("x")
    if continue_last:  # without tools, which the library refuses there
        messages, tools, plain, plain_tools = messages[:3] + messages[5:], [], plain[:3] + plain[5:], []
    got = prompt_of(messages, tools=tools, thinking=thinking, continue_last=continue_last)
    want = prompt_of(plain, tools=plain_tools, thinking=thinking, continue_last=continue_last)
    assert control_ids(TOKENIZER, got.token_ids) == control_ids(TOKENIZER, want.token_ids)
    assert TOKENIZER._library.decode(list(got.token_ids), skip_special_tokens=False) == got.text


def test_raw_prompt_reads_spelled_control_tokens() -> None:
    assert control_ids(TOKENIZER, TOKENIZER.encode("a</think>")) == [END]


# --- what is no conversation ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages is empty"),
        ("hi", "messages is str"),
        (None, "messages is NoneType"),
        ([3], "messages[0] is int"),
        ([{"content": "x"}], "messages[0] has the role None"),
        ([{"role": "boss", "content": "x"}], "messages[0] has the role 'boss'"),
        ([USER, {"role": "user", "content": ""}], "messages[1] is empty"),
        ([{"role": "system", "content": ""}], "the messages say nothing"),
        ([{"role": "user", "content": []}], "messages[0] is empty"),
        ([{"role": "user"}], "messages[0] has no content"),
        ([{"role": "user", "content": 5}], "messages[0] has content of type int"),
        ([{"role": "user", "content": [{"text": "x"}]}], "messages[0] has a content part that is no text"),
        ([{**USER, "cotnent": "x"}], "messages[0] has the key 'cotnent'"),
        ([{**USER, "tool_calls": [CALL]}], "messages[0] has the key 'tool_calls'"),
        ([USER, {"role": "assistant", "tool_calls": 3}], "messages[1] has tool_calls of type int"),
        ([{"role": "user", "content": "a\ud800"}], "messages or tools are not UTF-8: they have half of a surrogate"),
        ([USER, RESULT], "the messages are no conversation; Messages with role 'tool' must be a response"),
        ([USER, {"role": "assistant", "tool_calls": [CALL]}, USER], "the messages are no conversation; An assistant"),
        ([USER, {"role": "assistant"}], "the messages are no conversation; Invalid assistant message"),
    ],
)
def test_wrong_messages_are_refused_with_their_place(messages: Any, message: str) -> None:
    assert refusal(messages).startswith(message)


KEYS = [
    "role",
    "content",
    "tool_calls",
    "tool_call_id",
    "reasoning_content",
    "prefix",
    "id",
    "type",
    "function",
    "name",
]
ROLES = ["user", "assistant", "system", "tool", "latest_reminder"]
ANYTHING = st.recursive(
    st.sampled_from([None, True, 0, -1, 2.5, "", "x", "c1", "function", *ROLES, "{}", "{bad", "\x00", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=6,
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(ROLES), "content": st.sampled_from(["hi", "", None]) | ANYTHING},
    optional=dict.fromkeys(KEYS[2:6], ANYTHING),
)


@given(
    st.lists(MESSAGE | ANYTHING, max_size=4),
    st.lists(
        st.just({"name": "f"}) | st.fixed_dictionaries({"name": st.just("f"), "parameters": ANYTHING}), max_size=2
    ),
    st.booleans(),
    st.booleans(),
)
@settings(deadline=None, max_examples=80)
def test_any_messages_are_rendered_or_refused(messages: Any, tools: Any, thinking: bool, continue_last: bool) -> None:
    try:
        prompt = prompt_of(messages, tools=tools, thinking=thinking, continue_last=continue_last)
    except (InvalidMessages, NotSupported):
        return
    assert prompt.token_ids


def test_deep_nesting_is_refused() -> None:
    schema: Any = {}
    for _ in range(2000):
        schema = {"properties": schema}
    message = refusal([USER], tools=[{"name": "f", "parameters": schema}])
    assert message.startswith(("messages or tools are nested deeper than 64", "messages or tools are no JSON"))


@pytest.mark.parametrize(
    ("tool", "reason"),
    [
        ({"name": "bad name"}, "string does not match pattern"),
        ({"name": "f", "parameters": {"type": "strin"}}, "Invalid schema for function 'f'"),
        ({"name": "f", "parameters": {"a": float("nan")}}, "messages or tools are no JSON"),
    ],
)
def test_wrong_tool_is_refused(tool: dict[str, Any], reason: str) -> None:
    assert reason in refusal([USER], tools=[tool])


def test_image_is_refused_by_name() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:,x"}}
    with pytest.raises(NotSupported, match=r"messages\[0\]: this release has no image input"):
        prompt_of([{"role": "user", "content": [part]}])


def test_null_fields_count_as_absent() -> None:
    other = {**DONE, "tool_calls": None, "refusal": None}
    assert text_of([USER, other, USER]) == text_of([USER, DONE, USER])


# --- what a model must have -------------------------------------------------------------------------------------


def test_tokenizer_without_control_tokens_names_them() -> None:
    with pytest.raises(ModelCannotChat) as caught:
        ChatEncoder(chat_tokenizer(without=("<｜User｜>", END)))
    assert str(caught.value) == (
        "E_CHAT: this model cannot chat: its tokenizer lacks <｜User｜>, </think>\n"
        "  reason: these control tokens of the V4.1 chat form are no added tokens of tokenizer.json\n"
        "  remedy: use a V4.1 chat model, or give raw prompts to deepinfer generate"
    )


def test_tools_without_their_mark_are_refused_and_plain_chat_is_not() -> None:
    encoder = ChatEncoder(chat_tokenizer(without=(DSML,)))
    conversation = Conversation([USER], ChatOptions(tools=[TOOL]))
    with pytest.raises(ModelCannotChat, match=f"cannot call tools: its tokenizer lacks {DSML}"):
        encoder.encode(conversation, max_model_len=10_000)
    assert encoder.encode(Conversation([USER]), max_model_len=10_000).token_ids


def test_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepseek_recipe", None)
    with pytest.raises(LibraryMissing, match="remedy: pip install 'deepinfer-core\\[chat\\]'"):
        ChatEncoder(TOKENIZER)
