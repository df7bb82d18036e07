"""The file of baselines as text: what is written is read, and what is none is refused with its place."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from verify_entries import entry, sample

from deepinfer_core.errors import BaselineError
from deepinfer_verify.ppl.records import parse, short_hex, text_of

PATH = Path("b.json")


def test_file_holds_every_bit():
    odd = (-math.nextafter(1.0, 2.0), -5e-324, -0.0, -9999.0, -1 / 3)
    entries = {"k": entry(samples=(sample(0, odd), sample(1)), key="k", reason="why")}
    assert parse(PATH, text_of(entries)) == entries
    got = parse(PATH, text_of(entries))["k"].samples[0].logprobs
    assert [value.hex() for value in got] == [value.hex() for value in odd]


def test_text_is_the_same_whatever_the_order_and_ends_its_line():
    a, b = entry(key="a"), entry(key="b")
    assert text_of({"a": a, "b": b}) == text_of({"b": b, "a": a})
    assert text_of({"a": a}).endswith("}\n")


@pytest.mark.parametrize("value", [0.0, -1.5, -1.0, 3.0, -0.1, 1e300, -1e-300, 2.0**-1074, -float(2**60)])
def test_short_hex_is_the_number(value):
    assert float.fromhex(short_hex(value)) == value
    assert len(short_hex(value)) <= len(value.hex())


def test_perplexity_is_that_of_all_tokens():
    made = entry(samples=(sample(0, (-1.0, -2.0)), sample(1, (-3.0,))))
    assert made.perplexity == math.exp(2.0)
    assert made.samples[0].ppl == math.exp(1.5)


def test_perplexity_of_tokens_that_the_model_excludes_is_a_number():
    assert sample(0, (-9999.0,)).ppl == math.exp(700)


def damaged(text: str) -> str:
    with pytest.raises(BaselineError) as caught:
        parse(PATH, text)
    assert caught.value.reason
    assert "--update" in caught.value.remedy
    return caught.value.what


def test_other_version_is_refused():
    data = json.loads(text_of({"a": entry(key="a")}))
    for version in (2, 0, None, "1"):
        with pytest.raises(BaselineError) as caught:
            parse(PATH, json.dumps({**data, "version": version}))
        assert str(caught.value) == (
            f"E_BASELINE: b.json is of version {version!r}\n"
            "  reason: this release reads and writes version 1 of a file of baselines\n"
            "  remedy: use the release that wrote it, or give another file to --baseline and make it with --update"
        )


def test_cut_file_is_refused_wherever_it_is_cut():
    text = text_of({"a": entry(key="a")})
    for length in range(len(text) - 2):
        assert damaged(text[:length]).startswith("b.json is no file of baselines")


@pytest.mark.parametrize(
    ("place", "value", "what"),
    [
        (("samples",), {}, "a: samples is '{}'"),
        (("samples",), [], "a: no samples"),
        (("samples", 0), [], "a: sample 0: no drafts"),
        (("samples", 1, "ppl_hex"), "0x1.8q", "a: sample 1: ppl_hex is '0x1.8q'"),
        (("samples", 1, "ppl_hex"), 1.5, "a: sample 1: ppl_hex is '1.5'"),
        (("samples", 1, "sum_logprob_hex"), "nan", "a: sample 1: sum_logprob_hex is 'nan'"),
        (("samples", 0, "logprobs_hex"), "0x1p+0 inf", "a: sample 0: logprobs_hex is '0x1p+0 inf'"),
        (("samples", 0, "logprobs_hex"), [1.0], "a: sample 0: logprobs_hex is '[1.0]'"),
        (("samples", 0, "drafts"), [], "a: sample 0: drafts is '[]'"),
        (("samples", 0, "drafts", "verified"), [-1], "a: sample 0: drafts: verified is '[-1]'"),
        (("samples", 0, "drafts", "accepted"), [True], "a: sample 0: drafts: accepted is '[True]'"),
        (("model",), None, "a: model is 'None'"),
        (("workload",), "w", "a: workload is 'w'"),
    ],
)
def test_wrong_value_is_named_with_its_place(place, value, what):
    data = json.loads(text_of({"a": entry(key="a")}))
    at = data["entries"]["a"]
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    assert damaged(json.dumps(data)) == f"b.json is no file of baselines: {what}"


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "{}", '{"version": 1}', '{"version": 1, "entries": []}', "\x00", "[" * 100_000]
)
def test_text_that_is_something_else_is_refused(text):
    assert damaged(text).startswith("b.json is no file of baselines: it ")


def test_entry_that_stands_there_twice_is_refused():
    text = text_of({"a": entry(key="a"), "b": entry(key="b")}).replace('"b": {', '"a": {')
    with pytest.raises(BaselineError) as caught:
        parse(PATH, text)
    assert caught.value.reason == "'a' stands in one table twice"
