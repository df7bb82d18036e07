"""Prompts: forms, files, errors that stay at their place."""

from __future__ import annotations

import io

import numpy as np
import pytest

from deepinfer_core.errors import DeepInferError, InvalidParameter, InvalidPrompt
from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_core.requests import prompts as prompts_module
from deepinfer_core.requests.prompts import PromptInput, encode_prompt, inputs_of, read_jsonl, read_text
from deepinfer_core.text.tokenizer import Tokenizer

PARAMS = SamplingParams(max_tokens=7)


def jsonl(text: str | bytes) -> list[PromptInput]:
    data = text.encode() if isinstance(text, str) else text
    return list(read_jsonl(io.BytesIO(data), PARAMS))


def code(item: PromptInput) -> str:
    return "" if item.error is None else item.error.code


def test_bad_lines_are_errors_at_their_place_with_their_number() -> None:
    items = jsonl('{"prompt": "a"}\n\n[1]\nnull\n{bad\n{"prompt": "b"}\n')
    assert [code(item) for item in items] == ["", "E_INPUT", "E_INPUT", "E_INPUT", "E_INPUT", ""]
    assert [item.line for item in items] == [1, 2, 3, 4, 5, 6]
    messages = [item.error.what for item in items if item.error]
    assert messages == [
        "line 2 is empty",
        "line 3 is list, not an object",
        "line 4 is null, not an object",
        "line 5 is not JSON",
    ]
    assert [item.prompt for item in items if item.error is None] == ["a", "b"]


def test_line_has_its_own_sampling_fields_and_id() -> None:
    (item,) = jsonl('{"prompt": "a", "id": 7, "temperature": 0, "stop": ["x"]}')
    assert (item.request_id, item.params.temperature, item.params.stop, item.params.max_tokens) == ("7", 0.0, ("x",), 7)


def test_line_with_token_ids() -> None:
    assert jsonl('{"prompt_token_ids": [1, 2]}')[0].prompt == (1, 2)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ('{"prompt": "a", "top_p": 7}', "E_PARAM"),
        ('{"prompt": "a", "temprature": 0}', "E_PARAM"),
        ('{"prompt": "a", "temperature": NaN}', "E_PARAM"),
        ('{"prompt": "a", "n": 0}', "E_PARAM"),
        ('{"prompt": "a", "logit_bias": {"x": 2}}', "E_PARAM"),
        ('{"messages": []}', "E_UNSUPPORTED"),
        ('{"prompt": "a", "images": []}', "E_UNSUPPORTED"),
        ('{"prompt": 3}', "E_PROMPT"),
        ('{"prompt": null}', "E_PROMPT"),
        ('{"prompt_token_ids": "x"}', "E_PROMPT"),
        ('{"prompt": "a", "prompt_token_ids": [1]}', "E_PROMPT"),
        ('{"id": "x"}', "E_PROMPT"),
        ('{"prompt": "a", "id": [1]}', "E_PROMPT"),
        ("[" * 100_000, "E_INPUT"),
        ('{"prompt": "a"} x', "E_INPUT"),
    ],
)
def test_wrong_line_is_an_error_record(line: str, error: str) -> None:
    (item,) = jsonl(line)
    assert code(item) == error
    assert item.line == 1


def test_line_that_is_not_utf8_is_an_error_record() -> None:
    items = jsonl(b'{"prompt": "\xff"}\n{"prompt": "b"}')
    assert [code(item) for item in items] == ["E_PROMPT", ""]


def test_text_lines_keep_their_order_and_blanks() -> None:
    items = list(read_text(io.BytesIO(b"\xef\xbb\xbfone\r\n\n\xff\nlast"), PARAMS))
    assert [(item.line, item.prompt, code(item)) for item in items] == [
        (1, "one", ""),
        (2, "", ""),
        (3, None, "E_PROMPT"),
        (4, "last", ""),
    ]


@pytest.mark.parametrize(
    ("prompts", "want"),
    [
        ("text", ["text"]),
        ([1, 2], [(1, 2)]),
        (["a", [1], b"b"], ["a", (1,), "b"]),
        ({"prompt": "x"}, ["x"]),
        ([{"prompt_token_ids": (4,)}], [(4,)]),
        ([], []),
        (np.array([1, 2]), [(1, 2)]),
        (np.array([[1, 2], [3, 4]]), [(1, 2), (3, 4)]),
        ([np.array([1, 2])], [(1, 2)]),
        ((text for text in "ab"), ["a", "b"]),
    ],
)
def test_forms_of_prompts(prompts: object, want: list[object]) -> None:
    assert [item.prompt for item in inputs_of(prompts)] == want  # type: ignore[arg-type]


def test_prompt_of_a_wrong_type_is_an_error_at_its_place() -> None:
    items = list(inputs_of(["a", None, 3.5, "b"], PARAMS))  # type: ignore[list-item]
    assert [code(item) for item in items] == ["", "E_PROMPT", "E_PROMPT", ""]


def test_params_per_prompt_must_be_as_many() -> None:
    assert [i.params.max_tokens for i in inputs_of(["a", "b"], [PARAMS, SamplingParams()])] == [7, 16]
    with pytest.raises(InvalidParameter, match="2 sampling_params for 1 prompts"):
        inputs_of(["a"], [PARAMS, PARAMS])
    with pytest.raises(InvalidParameter, match="sampling_params is dict"):
        inputs_of(["a"], {"max_tokens": 3})


def encode(tokenizer: Tokenizer, prompt: object) -> tuple[int, ...]:
    return encode_prompt(prompt, tokenizer, vocab_size=300, max_model_len=10)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt is empty"),
        ((), "the prompt is empty"),
        ((1, 300), "prompt token id 300 is outside the vocabulary"),
        ((-1,), "prompt token id -1 is outside the vocabulary"),
        ((True,), "prompt token id True is outside the vocabulary"),
        ((1.0,), "prompt token id 1.0 is outside the vocabulary"),
        (tuple(range(10)), "the prompt has 10 tokens, the limit is 9"),
        ("a\udc80", "the prompt is not UTF-8: character 1 is half of a surrogate pair or a raw byte"),
    ],
)
def test_prompt_that_cannot_be_encoded_says_why(tokenizer: Tokenizer, prompt: object, message: str) -> None:
    with pytest.raises(InvalidPrompt) as caught:
        encode(tokenizer, prompt)
    assert caught.value.what == message
    assert caught.value.remedy


def test_text_that_is_surely_too_long_is_refused_without_encoding(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encoded(text: str) -> list[int]:
        raise AssertionError(f"{len(text)} characters were encoded")

    monkeypatch.setattr(tokenizer, "encode", encoded)
    with pytest.raises(InvalidPrompt) as caught:
        encode(tokenizer, "é" * 1_000_000)
    tokens = caught.value.details["tokens"]
    assert caught.value.what == f"the prompt has 2000000 bytes, which are at least {tokens} tokens, the limit is 9"


@pytest.mark.parametrize("text", ["a", " " * 500, "<｜end▁of▁sentence｜>" * 50, "def main():\n    return 1\n" * 20])
def test_least_tokens_is_never_above_the_number_of_tokens(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.least_tokens(text) <= len(tokenizer.encode(text))


def test_line_of_the_longest_length_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts_module, "MAX_LINE_BYTES", 4)
    items = list(read_text(io.BytesIO(b"abcd\nabcde\nabcd"), PARAMS))
    assert [code(item) for item in items] == ["", "E_INPUT", ""]
    assert [code(item) for item in jsonl("{    }\n")] == ["E_INPUT"]


def test_prompt_of_the_longest_length_is_accepted(tokenizer: Tokenizer) -> None:
    assert encode(tokenizer, tuple(range(9))) == tuple(range(9))


def test_token_ids_are_taken_as_they_are_and_text_gets_the_begin_token(tokenizer: Tokenizer) -> None:
    assert encode(tokenizer, (5, 6)) == (5, 6)
    assert encode_prompt("import os", tokenizer, vocab_size=1536, max_model_len=10)[0] == 0


def test_errors_are_typed() -> None:
    for item in jsonl("x\n{}\n"):
        assert isinstance(item.error, DeepInferError)
