"""How answers end: end tokens, stop ids, stop strings, limits; text, ids and counts agree."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engine_toys import EOS, TOKENS, VOCAB, ToyModel, check_idle, solo_tokens, toy_llm

from deepinfer_core.llm import LLM
from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_core.requests.outputs import RequestOutput

pytestmark = pytest.mark.usefixtures("overlap")


class Script(ToyModel):
    """Says ``text`` after a prompt, token by token, whatever the prompt is; then the end token."""

    def __init__(self, tokens: list[int], prompt_len: int) -> None:
        self.tokens = tokens
        self.prompt_len = prompt_len

    def forward(self, inputs: object, caches: object) -> object:
        import numpy as np

        return np.asarray(inputs.positions)  # type: ignore[attr-defined]

    def logits(self, hidden: object) -> object:
        import numpy as np

        out = np.zeros((len(hidden), VOCAB), dtype=np.float32)  # type: ignore[arg-type]
        for row, position in enumerate(hidden.tolist()):  # type: ignore[attr-defined]
            at = position + 1 - self.prompt_len
            out[row, self.tokens[at] if 0 <= at < len(self.tokens) else EOS] = 1
            out[row, TOKENS:] = 100
        return out


def say(data: bytes | list[int], **fields: object) -> RequestOutput:
    llm = toy_llm(parts={"model": Script(list(data), 3)})
    with llm:
        fields = {"temperature": 0, "max_tokens": 50, **fields}
        (output,) = llm.generate([[1, 2, 3]], SamplingParams(**fields))  # type: ignore[arg-type]
        check_idle(llm)
    return output


def test_end_token_has_no_text_and_is_the_last_id() -> None:
    output = say(b"abc")
    assert (output.text, output.finish_reason, output.finish_detail) == ("abc", "stop", "eos")
    assert output.token_ids == (*b"abc", EOS)


def test_end_token_is_shown_with_the_include_flag() -> None:
    assert say(b"abc", include_stop=True).text == "abc<eos>"


def test_ignore_eos_goes_on_but_stop_ids_still_end() -> None:
    data = [*b"ab", EOS, *b"cd", EOS, *b"e"]
    output = say(data, ignore_eos=True, stop_token_ids=[ord("d")])
    assert (output.text, output.finish_detail, output.token_ids) == ("abc", "stop_token", (*b"ab", EOS, *b"cd"))
    assert say(data, ignore_eos=True, max_tokens=6).text == "abcd"
    assert say(data, ignore_eos=True, max_tokens=6).finish_detail == "max_tokens"


@pytest.mark.parametrize(("include", "text"), [(False, "ab"), (True, "abc")])
def test_visible_stop_token_is_in_the_text_only_if_asked_for(include: bool, text: str) -> None:
    output = say(b"abcd", stop_token_ids=[ord("c")], include_stop=include)
    assert (output.text, output.token_ids, output.finish_detail) == (text, (*b"abc",), "stop_token")


@pytest.mark.parametrize(("include", "text"), [(False, "one "), (True, "one STOP")])
def test_stop_string_across_tokens_ends_text_and_ids_together(include: bool, text: str) -> None:
    output = say(b"one STOP two", stop=["STOP"], include_stop=include)
    assert (output.text, output.finish_reason, output.finish_detail) == (text, "stop", "stop_string")
    assert output.token_ids == tuple(b"one STOP")


def test_stop_string_wins_over_a_length_limit_at_the_same_token() -> None:
    output = say(b"ab", stop="b", max_tokens=2)
    assert (output.text, output.finish_reason, output.finish_detail) == ("a", "stop", "stop_string")


def test_length_limit_before_the_stop_string_gives_the_held_text_back() -> None:
    output = say(b"abST", stop="STOP", max_tokens=4)
    assert (output.text, output.finish_reason) == ("abST", "length")


def test_end_token_while_text_is_held_gives_it_back() -> None:
    assert say(b"abST", stop="STOP").text == "abST"


def test_stop_string_inside_a_character_sequence() -> None:
    assert say("1 你好 2".encode(), stop="好").text == "1 你"


def test_min_tokens_keeps_end_tokens_and_stop_strings_away() -> None:
    output = say(b"xx", stop="x", min_tokens=1)
    assert (output.text, output.token_ids) == ("x", (*b"xx",))
    output = say(b"a", min_tokens=4)
    assert len(output.token_ids) >= 4
    assert EOS not in output.token_ids[:4]


def test_answer_cut_inside_a_character_ends_with_one_replacement_sign() -> None:
    output = say("a🙂".encode(), max_tokens=3)
    assert output.text == "a\ufffd"


def test_hidden_special_token_in_the_middle_has_no_text() -> None:
    assert say([*b"a", 257, *b"b"]).text == "ab"


def test_prompt_that_ends_inside_a_character_is_not_repeated() -> None:
    emoji = "🙂".encode()
    llm = toy_llm(parts={"model": Script([*emoji[2:], *b"!"], 4)})
    with llm:
        (output,) = llm.generate([[ord("p"), ord(" "), *emoji[:2]]], SamplingParams(temperature=0, max_tokens=9))
    assert output.text == "🙂!"


@pytest.fixture
def llm() -> Iterator[LLM]:
    with toy_llm() as made:
        yield made


def test_limits_of_one_to_sixteen_tokens_all_end_with_their_solo_tokens(llm: LLM) -> None:
    prompts = [[i, 2 * i] for i in range(16)]
    params = [SamplingParams(temperature=0, max_tokens=n + 1, ignore_eos=True) for n in range(16)]
    outputs = llm.generate(prompts, params)
    for n, output in enumerate(outputs):
        assert list(output.token_ids) == solo_tokens(prompts[n], n + 1, ends=frozenset())
    check_idle(llm)


def test_streamed_pieces_joined_are_the_text(llm: LLM) -> None:
    prompts = [[i, 200 - i] for i in range(12)]
    params = SamplingParams(temperature=0, max_tokens=60, stop=["\x01", "zz"])
    text = [""] * 12
    ids: list[list[int]] = [[] for _ in range(12)]
    outputs: dict[int, RequestOutput] = {}
    for chunk in llm.stream(prompts, params):
        assert chunk.index not in outputs
        text[chunk.index] += chunk.text
        ids[chunk.index] += chunk.token_ids
        if chunk.output is not None:
            outputs[chunk.index] = chunk.output
    whole = llm.generate(prompts, params)
    assert text == [output.text for output in whole] == [outputs[i].text for i in range(12)]
    assert ids == [list(output.token_ids) for output in whole]
