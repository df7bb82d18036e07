"""Answers of a chat in pieces: however the text is split, reasoning, content and calls are the same."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from chat_toys import DSML, END, chat_tokenizer
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deepinfer_core.chat import AnswerParser, ChatEncoder, ChatOptions, ChatPrompt, Conversation, ToolCall

pytest.importorskip("deepseek_recipe", reason="pip install 'deepinfer-core[chat]' to test chat")

TOOL = {"name": "run", "parameters": {"type": "object"}}
ENCODER = ChatEncoder(chat_tokenizer())


def prompt_of(**options: Any) -> ChatPrompt:
    messages = [{"role": "user", "content": "hi"}]
    return ENCODER.encode(Conversation(messages, ChatOptions(**options)), max_model_len=100_000)


THINKING = prompt_of(tools=[TOOL])
PLAIN = prompt_of(tools=[TOOL], thinking=False)
NO_TOOLS = prompt_of(thinking=False)
REQUIRED = prompt_of(tools=[TOOL], thinking=False, tool_choice="required")


def parameter(name: str, value: str, *, string: str) -> str:
    return f'<{DSML} parameter name="{name}" string="{string}">{value}</{DSML} parameter>\n'


def invoke(name: str, *parameters: str) -> str:
    return f'<{DSML} invoke name="{name}">\n{"".join(parameters)}</{DSML} invoke>\n'


def block(*invocations: str) -> str:
    return f"\n\n<{DSML} calls>\n{''.join(invocations)}</{DSML} calls>"


FULL = f"why\n{END}ok" + block(
    invoke(
        "run",
        parameter("cmd", 'ls 2>&1 "q" \\ \n</x> &amp;', string="true"),
        parameter("n", "5", string="false"),
        parameter("s", "5", string="true"),
    ),
    invoke("two"),
)

Answer = tuple[str, str, tuple[ToolCall, ...]]


def require(got: object, want: object) -> None:
    if got != want:
        raise AssertionError(f"{got!r} is not {want!r}")


def parsed(pieces: Iterable[str], prompt: ChatPrompt = THINKING) -> Answer:
    """Reasoning, content and calls; the joined pieces of the stream are checked against them."""
    parser = AnswerParser(prompt)
    deltas = [*(parser.feed(piece) for piece in pieces), parser.finish()]
    calls = parser.tool_calls()
    streamed: dict[int, list[str]] = {}
    for call in (call for delta in deltas for call in delta.tool_calls):
        entry = streamed.setdefault(call.index, ["", "", ""])
        for place, text in enumerate((call.id, call.name, call.arguments)):
            entry[place] += text
    require("".join(delta.content for delta in deltas), parser.content)
    require("".join(delta.reasoning for delta in deltas), parser.reasoning)
    require([streamed[i][:2] for i in sorted(streamed)], [[call.id, call.name] for call in calls])
    for index, call in enumerate(calls):
        if not any(set(name) & set(" \\") for name in call.parsed or ()):  # these the library's pieces get wrong
            require(streamed[index][2], call.arguments)
    return parser.reasoning, parser.content, calls


def split(text: str, cuts: Sequence[int]) -> list[str]:
    places = [0, *sorted(cuts), len(text)]
    return [text[a:b] for a, b in pairwise(places)]


# --- every split ------------------------------------------------------------------------------------------------


def test_every_split_in_two_gives_the_same_answer() -> None:
    reasoning, content, calls = parsed([FULL])
    assert (reasoning, content) == ("why", "ok")
    assert [(call.name, call.parsed) for call in calls] == [
        ("run", {"cmd": 'ls 2>&1 "q" \\ \n</x> &amp;', "n": 5, "s": "5"}),
        ("two", {}),
    ]
    for cut in range(len(FULL) + 1):
        assert parsed(split(FULL, [cut])) == (reasoning, content, calls), cut
    assert parsed(FULL) == (reasoning, content, calls)  # a character at a time


MARKS = ["<", "｜", DSML, f"<{DSML} calls>\n", f"</{DSML} calls>", f'<{DSML} invoke name="', f"</{DSML} invoke>", END]
PIECES = st.sampled_from(
    [*MARKS, '"', '">', "\n", f'<{DSML} parameter name="', 'string="true">', "false", "x", "\\", "é"]
)
NOISE = st.lists(PIECES, max_size=20).map("".join)


@given(st.one_of(NOISE, NOISE.map(lambda noise: FULL + noise), NOISE.map(lambda noise: noise + FULL)), st.data())
@settings(deadline=None, max_examples=150)
def test_any_split_of_any_text_gives_the_same_answer(text: str, data: st.DataObject) -> None:
    prompt = data.draw(st.sampled_from([THINKING, PLAIN, NO_TOOLS, REQUIRED]))
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=10))
    whole = parsed([text], prompt)
    assert parsed(split(text, cuts), prompt) == whole
    for call in whole[2]:
        assert (call.parsed is None) == bool(call.problem)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.text(st.characters(exclude_characters='"', exclude_categories=("Cs", "Cc")), min_size=1, max_size=6)


@given(st.dictionaries(NAMES, VALUES, max_size=4), st.lists(st.floats(0, 1), max_size=6))
@example({"first name": "x", "a\\b": 1, " ": None}, [0.5])
@settings(deadline=None, max_examples=80)
def test_arguments_come_back_as_the_encoder_wrote_them(arguments: dict[str, Any], cuts: list[float]) -> None:
    """The call as the prompt of a later turn shows it is what the model would have said."""
    written = json.dumps(arguments, ensure_ascii=False)
    if DSML in written:
        return
    call = {"id": "c", "type": "function", "function": {"name": "run", "arguments": written}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": ""},
    ]
    options = ChatOptions(tools=[TOOL], thinking=False)
    text = ENCODER.encode(Conversation(messages, options), max_model_len=100_000).text
    start = text.rindex(f"<{DSML} calls>")
    said = text[start : text.index(f"</{DSML} calls>", start)] + f"</{DSML} calls>"
    _, content, (got,) = parsed(split(said, [round(cut * len(said)) for cut in cuts]), PLAIN)
    assert content == ""
    assert got.problem == ""
    assert got.parsed == arguments == json.loads(got.arguments)


# --- types ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("string", "text", "value"),
    [
        ("true", "5", "5"),
        ("false", "5", 5),
        ("true", "null", "null"),
        ("false", "null", None),
        ("false", "true", True),
        ("false", '"5"', "5"),
        ("false", ' {"a": [1, 2.5]} ', {"a": [1, 2.5]}),
        ("true", '{"a": 1}', '{"a": 1}'),
        ("true", "", ""),
        ("true", "2>&1", "2>&1"),
        ("true", " \n x \n", " \n x \n"),
    ],
)
def test_type_of_an_argument_follows_its_mark(string: str, text: str, value: object) -> None:
    _, _, (call,) = parsed([block(invoke("run", parameter("p", text, string=string)))], PLAIN)
    assert call.parsed == {"p": value}
    assert json.loads(call.arguments) == {"p": value}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (invoke("run", parameter("p", "{oops", string="false")), "parameter 'p' is marked as JSON and is none: "),
        (invoke("run", parameter("p", "NaN", string="false")), "parameter 'p' is marked as JSON and is none: NaN is"),
        (invoke("run", parameter("p", "[" * 5000, string="false")), "parameter 'p' is marked as JSON and is none: "),
        (invoke("run", parameter("p", "", string="false")), "parameter 'p' is marked as JSON and is none: "),
        (invoke("run", *[parameter("p", "x", string="true")] * 2), "parameter 'p' is given twice"),
        (invoke("run", parameter("p", "x", string="maybe")), "the call is not well-formed"),
        (
            invoke("run", parameter("p", "x", string="maybe"), parameter("q", "y", string="true")),
            "the call is not well-formed",
        ),
    ],
)
def test_arguments_that_cannot_be_used_say_why(text: str, problem: str) -> None:
    _, _, (call,) = parsed([block(text)], PLAIN)
    assert call.name == "run"
    assert call.parsed is None
    assert call.problem.startswith(problem)


def test_call_cut_by_a_limit_says_so() -> None:
    text = block(invoke("run", parameter("cmd", "rm -rf /tmp/x", string="true")))
    end = text.index("/tmp/x")
    _, _, (call,) = parsed([text[:end]], PLAIN)
    assert (call.name, call.parsed, call.problem) == ("run", None, "the call is not complete")


def test_bad_call_leaves_those_before_it_alone() -> None:
    text = block(invoke("run", parameter("p", "x", string="true")), invoke("run", parameter("p", "x", string="?")))
    _, _, calls = parsed([text], PLAIN)
    assert [(call.parsed, call.problem) for call in calls] == [({"p": "x"}, ""), (None, "the call is not well-formed")]


# --- what is looked for -----------------------------------------------------------------------------------------


def test_marks_are_text_where_no_tools_were_given() -> None:
    assert parsed([FULL.partition(END)[2]], NO_TOOLS) == ("", FULL.partition(END)[2], ())


def test_required_call_goes_on_where_the_prompt_ends() -> None:
    _, _, (call,) = parsed([invoke("run", parameter("p", "1", string="false")), f"</{DSML} calls>"], REQUIRED)
    assert call.parsed == {"p": 1}


def test_continued_content_keeps_its_leading_lines() -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "par"}]
    prompt = ENCODER.encode(Conversation(messages, ChatOptions(continue_last=True)), max_model_len=10_000)
    assert parsed(["\n\nnext"], prompt) == ("", "\n\nnext", ())


def test_ids_of_calls_repeat_with_the_run_and_differ_between_answers() -> None:
    first, again, other = (AnswerParser(THINKING, key) for key in ("1", "1", "2"))
    ids = []
    for parser in (first, again, other):
        parser.feed(FULL)
        parser.finish()
        ids.append([call.id for call in parser.tool_calls()])
    assert ids[0] == ids[1]
    assert len({*ids[0], *ids[2]}) == 4
