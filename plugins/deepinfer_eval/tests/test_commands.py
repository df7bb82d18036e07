"""``deepinfer eval`` on the shipped checkpoint: what it writes, what it refuses before a model is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from eval_files import ITEMS, write_lines

from deepinfer_core.cli import main
from deepinfer_eval.answers import read_answers

GENERATE = ("--backend", "cpu", "-n", "2", "--max-tokens", "6", "--seed", "3", "--deterministic", "batch")


@pytest.fixture(autouse=True)
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> int:
    return main(["eval", *arguments])


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A whole file of answers to ``ITEMS``."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("answered")
    items = write_lines(folder / "items.jsonl", ITEMS)
    out = folder / "a.jsonl"
    assert run("generate", str(items), "--out", str(out), "--scorer", "numeric", *GENERATE) == 0
    return out.read_bytes()


def test_generate_writes_every_answer_with_what_scoring_needs(answered: bytes) -> None:
    header, *records = map(json.loads, answered.splitlines())
    assert header["samples"] == 2
    assert header["parameters"] == {"max_tokens": 6, "seed": 3}
    assert header["scorer"] == {"name": "numeric", "params": {}}
    assert header["run"]["settings"] == {"deterministic": "batch"}
    assert sorted((r["id"], r["sample"]) for r in records) == [(f"f{i}", s) for i in range(4) for s in range(2)]
    assert all(r["expected"] == r["item"] and len(r["token_ids"]) == r["num_output_tokens"] for r in records)
    assert len({r["seed"] for r in records}) == 8


def test_generate_goes_on_behind_a_cut_with_the_same_answers(
    answered: bytes, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = answered.splitlines(keepends=True)
    Path("a.jsonl").write_bytes(b"".join(lines[:4]) + lines[4][:25])
    assert run("generate", str(dataset), "--out", "a.jsonl", "--scorer", "numeric", *GENERATE) == 0
    assert sorted(Path("a.jsonl").read_bytes().splitlines()) == sorted(answered.splitlines())
    assert capsys.readouterr().out == "8 of 8 answers in a.jsonl, 5 of them new\n"


def test_whole_file_is_left_alone_without_a_model(
    answered: bytes, dataset: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("a.jsonl").write_bytes(answered)
    monkeypatch.setattr("deepinfer_eval.generate_command.load_llm", None)
    assert run("generate", str(dataset), "--out", "a.jsonl", *GENERATE, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"answers": 8, "total": 8, "written": 0, "failed": 0, "out": "a.jsonl"}
    assert Path("a.jsonl").read_bytes() == answered


def test_other_parameters_are_refused_before_a_model_is_loaded(
    answered: bytes, dataset: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("a.jsonl").write_bytes(answered[:-30])
    monkeypatch.setattr("deepinfer_eval.generate_command.load_llm", None)
    assert run("generate", str(dataset), "--out", "a.jsonl", *GENERATE, "--temperature", "0.5") == 5
    assert capsys.readouterr().err == (
        "deepinfer: E_RUN_MISMATCH: a.jsonl was begun by another run\n"
        "  reason: temperature is 0.5, was at its default\n"
        "  remedy: give what the file was begun with, or another file to --out\n"
    )
    assert Path("a.jsonl").read_bytes() == answered[:-30]


def test_another_setting_of_the_engine_is_refused(
    answered: bytes, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("a.jsonl").write_bytes(answered.splitlines(keepends=True)[0])
    assert run("generate", str(dataset), "--out", "a.jsonl", *GENERATE, "--numeric-mode", "exact") == 5
    assert "reason: numeric_mode is exact, was at its default" in capsys.readouterr().err
    assert Path("a.jsonl").read_bytes() == answered.splitlines(keepends=True)[0]


def test_failed_question_is_told_and_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    items = [{"id": "long", "question": "x " * 400, "answer": 1}, {"id": "short", "question": "x", "answer": 1}]
    write_lines(Path("d.jsonl"), items)
    settings = ("--backend", "cpu", "--max-model-len", "64", "--max-tokens", "4", "-n", "2")
    assert run("generate", "d.jsonl", "--out", "a.jsonl", *settings) == 1
    captured = capsys.readouterr()
    assert captured.out == "2 of 4 answers in a.jsonl, 2 of them new; 2 failed\n"
    assert captured.err.count("deepinfer: line 1, id long: E_PROMPT: the prompt has ") == 1
    assert [answer.item_id for answer in read_answers("a.jsonl").answers] == ["short", "short"]
    assert run("score", "a.jsonl", "--scorer", "numeric") == 1
    assert "answers: 2, 2 missing; " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (["[1]"], [], "E_INPUT: d.jsonl has a line that is no item"),
        (['{"question": "a", "answer": "x"}'], ["--scorer", "numeric"], "line 1, id 1: the expected answer is 'x'"),
        (
            ['{"question": "a", "answer": 1}'],
            ["--scorer", "numerik"],
            "no scorer named 'numerik'; did you mean 'numeric'",
        ),
        (['{"question": "a", "answer": 1}'], ["--scorer-params", "{}"], "--scorer-params is for a scorer"),
        (
            ['{"question": "a", "answer": 1}'],
            ["--scorer", "regex", "--scorer-params", "{"],
            "--scorer-params is not JSON",
        ),
        (['{"question": "a", "answer": 1}'], ["--logprobs"], "--logprobs is of no use here"),
        (['{"question": "a", "answer": 1}'], ["--effort", "low"], "--effort is for chats"),
        (['{"question": "a", "answer": 1}'], ["--template", "none.txt"], "cannot read the template none.txt"),
        (['{"question": "a", "answer": 1}'], ["--top-p", "2"], "top_p is 2"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    lines: list[str], options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("d.jsonl").write_text("\n".join(lines))
    assert run("generate", "d.jsonl", "--out", "a.jsonl", *options) in (2, 3)
    assert message in capsys.readouterr().err
    assert not Path("a.jsonl").exists()


def scored_file(records: list[dict[str, Any]], header: Any, **changes: Any) -> None:
    write_lines(Path("a.jsonl"), [{**header.as_record(), **changes}, *records])


def test_score_says_pass_at_1_from_the_file_alone(
    header: Any, answer_record: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["1", "2", "1", "1", "none", "3"]
    keys = [(item, sample) for item in range(3) for sample in range(2)]
    records = [answer_record(*key, text) for key, text in zip(keys, texts, strict=True)]
    scored_file([*records[:5], {**records[5], "finish_reason": "length"}], header)
    assert run("score", "a.jsonl", "--out", "verdicts.jsonl") == 0
    assert capsys.readouterr().out == (
        "data set: d.jsonl, 3 items, sha256 0000000000000000\n"
        "answers: 6; 3 right; scored by numeric\n"
        "Pass@1: 0.5000, 95% interval 0.0006 to 0.9994 (Korn-Graubard, items as clusters; standard error 0.2887, "
        "worth 1.1 independent answers)\n"
        "ended by: 1 length, 5 stop (16.7% cut); 1 without an answer in them; 3.0 tokens each\n"
    )
    verdicts = [json.loads(line) for line in Path("verdicts.jsonl").read_text().splitlines()]
    assert [(v["id"], v["sample"], v["correct"], v["found"]) for v in verdicts[:2]] == [
        ("i0", 0, True, "1"),
        ("i0", 1, False, "2"),
    ]
    assert run("score", "a.jsonl", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["pass_at_1"], told["missing"], told["cut_share"]) == (0.5, 0, pytest.approx(1 / 6))


def test_item_keeps_its_own_scorer(header: Any, answer_record: Any, capsys: pytest.CaptureFixture[str]) -> None:
    own = answer_record(0, 0, "Answer: A", expected="A", scorer={"name": "multiple_choice", "params": {"choices": 4}})
    scored_file([own, answer_record(1, 0)], header)
    assert run("score", "a.jsonl", "--scorer", "regex", "--json") == 2  # 1 is no pattern
    assert "the expected answer is 1" in capsys.readouterr().err
    assert run("score", "a.jsonl", "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["right"], told["scorers"]) == (2, ['multiple_choice {"choices": 4}', "numeric"])


def test_score_without_a_scorer_lists_the_installed_ones(
    header: Any, answer_record: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    scored_file([answer_record(0, 0)], header, scorer=None)
    assert run("score", "a.jsonl") == 2
    error = capsys.readouterr().err
    assert "no scorer was named" in error
    assert all(name in error for name in ("exact_match", "multiple_choice", "numeric", "regex"))


@pytest.mark.parametrize("data", [None, b"", b'{"deepinfer_eval": 1, "data'])
def test_score_of_no_answers_is_an_error(data: bytes | None, capsys: pytest.CaptureFixture[str]) -> None:
    if data is not None:
        Path("a.jsonl").write_bytes(data)
    assert run("score", "a.jsonl", "--scorer", "numeric") == 2
    assert "a.jsonl has no answers" in capsys.readouterr().err


def test_score_of_a_file_that_grows_leaves_out_half_a_line(
    header: Any, answer_record: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    scored_file([answer_record(0, 0), answer_record(0, 1)], header)
    data = Path("a.jsonl").read_bytes()
    Path("a.jsonl").write_bytes(data[:-10])
    assert run("score", "a.jsonl", "--json") == 1
    assert json.loads(capsys.readouterr().out)["answers"] == 1
    assert Path("a.jsonl").read_bytes() == data[:-10]


def test_confidence_outside_its_range_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("score", "a.jsonl", "--confidence", "95") == 2
    assert "confidence is 95.0" in capsys.readouterr().err


@pytest.mark.parametrize("out", ["a.jsonl", "./a.jsonl", "link.jsonl"])
def test_verdicts_do_not_take_the_place_of_the_answers(
    answered: bytes, capsys: pytest.CaptureFixture[str], out: str
) -> None:
    Path("a.jsonl").write_bytes(answered)
    Path("link.jsonl").symlink_to("a.jsonl")
    assert run("score", "a.jsonl", "--out", out) == 2
    assert f"E_USAGE: --out {out} is the file of answers itself" in capsys.readouterr().err
    assert Path("a.jsonl").read_bytes() == answered
