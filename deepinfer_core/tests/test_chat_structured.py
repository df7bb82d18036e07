"""Structured output of a chat: the grammar waits for the end of reasoning, and the prompt shows the schema."""

from __future__ import annotations

import importlib.util
import json
import re
from typing import Any

import pytest
from chat_toys import END, chat_llm, chat_tokenizer

from deepinfer_core.chat import ChatOptions, Conversation
from deepinfer_core.errors import InvalidParameter
from deepinfer_core.llm import LLM
from deepinfer_core.parameters.sampling_params import SamplingParams

pytest.importorskip("deepseek_recipe", reason="pip install 'deepinfer-core[chat]' to test chat")

USER = {"role": "user", "content": "Explain `threading.Lock`."}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


def settled(params: SamplingParams, messages: Any = (USER,), **options: Any) -> tuple[str, SamplingParams]:
    """The prompt, and the parameters that the answer is sampled with."""
    with chat_llm("x") as llm:
        prompt, params = llm.encode_chat(Conversation(messages, ChatOptions(**options)), params)
    return prompt.text, params


def test_grammar_waits_for_the_end_of_reasoning() -> None:
    _, params = settled(SamplingParams(regex="a+"))
    assert params.structured is not None
    assert params.structured.as_record() == {
        "schema_type": "regex",
        "schema": "a+",
        "trigger_token_ids": [chat_tokenizer().control_id(END)],
    }


@pytest.mark.parametrize(
    ("messages", "options"),
    [
        ((USER,), {"thinking": False}),
        ((USER, {"role": "assistant", "content": "par"}), {"continue_last": True}),
    ],
)
def test_grammar_starts_at_once_where_no_reasoning_comes(messages: Any, options: dict[str, Any]) -> None:
    given = SamplingParams(regex="a+")
    assert settled(given, messages, **options)[1] == given


def test_trigger_of_the_caller_stays() -> None:
    given = SamplingParams(so_args={"schema_type": "regex", "schema": "a+", "trigger_token_ids": [5, 6]})
    assert settled(given)[1] == given


@pytest.mark.parametrize("name", ["json_schema", "response_format"])
def test_prompt_shows_the_schema(name: str) -> None:
    value: Any = SCHEMA if name == "json_schema" else {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
    text, _ = settled(SamplingParams(**{name: value}))
    assert f"strictly adhere to the following schema to reply:\n{json.dumps(SCHEMA)}" in text


def test_other_grammars_leave_the_prompt_alone() -> None:
    assert settled(SamplingParams(regex="a+"))[0] == settled(SamplingParams())[0]


def test_tools_with_a_grammar_are_refused() -> None:
    tools = [{"name": "run"}]
    with pytest.raises(InvalidParameter, match="structured output and tools are given together"):
        settled(SamplingParams(regex="a+"), tools=tools)
    settled(SamplingParams(regex="a+"), tools=tools, tool_choice="none")


NEEDED = ("torch", "deepinfer_cpu", "deepinfer_v41", "deepinfer_samplers", "xgrammar")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]


@pytest.mark.skipif(bool(MISSING), reason=f"install {', '.join(MISSING)} to run the shipped model")
def test_shipped_model_keeps_to_its_form_behind_the_reasoning() -> None:
    greedy = {"temperature": 0, "max_tokens": 120}
    conversations = [
        {"messages": [USER], "regex": "(yes|no)!", **greedy},
        {"messages": [USER], "regex": "(yes|no)!", "thinking": False, **greedy},
        {"messages": [USER], "json_schema": SCHEMA, **greedy},
        {"messages": [USER], "temperature": 0, "max_tokens": 60},
    ]
    with LLM(backend="cpu") as llm:
        first, plain, data, free = llm.chat(conversations)
    assert first.reasoning.startswith("The user asks about the function")
    for output in (first, plain):
        assert re.fullmatch("(yes|no)!", output.content)
        assert output.finish_reason == "stop"
    assert set(json.loads(data.content)) == {"a"}
    assert free.content
    assert not re.fullmatch("(yes|no)!", free.content)
