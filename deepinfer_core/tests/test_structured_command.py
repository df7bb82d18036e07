"""``deepinfer generate`` in a grammar: options, JSON lines, records, exit status; over toy parts."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_toys import ToyParts, save_tokenizer
from tiny_grammar import TinyEngine

from deepinfer_core.cli import main
from deepinfer_core.structured.sizes import MAX_BYTES
from deepinfer_core.types import ModelCard

Run = Callable[..., tuple[int, bytes, str]]
WORD = "[a-z]{3} (yes|no)"
REPORT = re.compile(
    r"deepinfer: grammars: (\d+) compiled, (\d+) cached, (\d+) failed; (\d+) masks in (\d+) steps, \d+ us"
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs the command; gives status, standard output and standard error."""
    save_tokenizer(tmp_path)
    card = ModelCard(path=tmp_path, architecture="Toy", model_type="toy", config={})
    monkeypatch.setattr(
        "deepinfer_core.assembly.assemble.assemble", lambda config, **_: ToyParts(config, card=card, grammar=TinyEngine)
    )

    def call(*arguments: object, stdin: str = "") -> tuple[int, bytes, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        status = main(["generate", *map(str, arguments)])
        out, err = capfdbinary.readouterr()
        return status, out, err.decode()

    return call


def records(out: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.decode().splitlines()]


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_regex_option_gives_a_text_that_matches(run: Run, stream: str) -> None:
    status, out, err = run("hello", "--regex", WORD, stream)
    assert status == 0
    assert re.fullmatch(WORD, out.decode().removesuffix("\n"))
    assert REPORT.search(err).groups()[:3] == ("1", "0", "0")


def test_json_object_option_gives_an_object(run: Run) -> None:
    status, out, _ = run("hello", "--json-object", "--json", "--temperature", 0, "--max-tokens", 200)
    (record,) = records(out)
    assert (status, record["finish_reason"], record["so_complete"]) == (0, "stop", True)
    assert isinstance(json.loads(record["text"]), dict)


def test_grammar_option_reads_its_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "g.ebnf"
    path.write_text('\ufeffroot ::= "left" | "right"\n', "utf-8")
    status, out, _ = run("hello", "--grammar", path)
    assert status == 0
    assert out in (b"left\n", b"right\n")


def test_schema_that_the_engine_cannot_compile_fails_its_prompt_with_status_one(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text('{"type": "integer"}')
    status, out, err = run("hello", "--json-schema", path, "--json")
    (record,) = records(out)
    assert status == 1
    assert (record["finish_reason"], record["finish_detail"]) == ("grammar", "so_invalid_grammar")
    assert record["error"]["code"] == "E_GRAMMAR"
    assert (
        "deepinfer: prompt 1: E_GRAMMAR: request 0: the json grammar does not compile\n"
        "  reason: this engine compiles no json\n"
    ) in err


def test_answer_without_a_grammar_has_no_report_and_no_flag(run: Run) -> None:
    status, out, err = run("hello", "--json", "--max-tokens", 3)
    assert (status, err) == (0, "")
    assert "so_complete" not in records(out)[0]


def test_warning_is_a_line_without_a_place_in_the_source(run: Run) -> None:
    status, out, err = run("hello", "--regex", "ab", "--min-tokens", 9)
    assert (status, out) == (0, b"ab\n")
    lines = [line for line in err.splitlines() if "W_" in line or ".py" in line]
    assert lines == [
        (
            "deepinfer: W_GRAMMAR_END: request 0: its grammar allows nothing but an end within the first min_tokens "
            "(9) tokens; it ends there"
        )
    ]


def test_cut_answer_has_reason_length_and_is_not_complete(run: Run) -> None:
    status, out, _ = run("hello", "--regex", "a{9}", "--max-tokens", 3, "--json")
    (record,) = records(out)
    assert (status, record["text"], record["finish_reason"], record["so_complete"]) == (0, "aaa", "length", False)


def test_each_json_line_has_its_own_grammar(run: Run, tmp_path: Path) -> None:
    lines = [
        {"prompt": "a", "regex": "one"},
        {"prompt": "b"},
        {"prompt": "c", "grammar": 'root ::= "three"'},
        {"prompt": "d", "response_format": {"type": "text"}},
        {"prompt": "e", "json_schema": {"type": "integer"}},
        {"prompt": "f", "regex": "x", "json_object": True},
        {"prompt": "g", "so_args": {"schema_type": "regex", "schema": "seven"}},
        {"prompt": "h", "response_format": {"type": "xml"}},
        {"prompt": "i", "regex": "(", "n": 2},
        {"prompt": "j", "so_args": {"schema_type": "regex", "schema": "a", "trigger_token_ids": [260]}},
        {"prompt": "k", "regex": "four|five", "n": 2},
    ]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    status, out, err = run("--prompts-file", source, "--json", "--regex", "all", "--max-tokens", 8)
    rows = records(out)
    assert status == 1
    texts = {index: row["text"] for index, row in enumerate(rows) if "error" not in row}
    assert {index: text for index, text in texts.items() if index not in (3, 10)} == {
        0: "one",
        1: "all",
        2: "three",
        6: "seven",
    }
    assert all(sample["text"] in ("four", "five") for sample in rows[10]["outputs"])
    assert "so_complete" not in rows[3]
    codes = {index: row["error"]["code"] for index, row in enumerate(rows) if "error" in row}
    assert codes == {4: "E_GRAMMAR", 5: "E_PARAM", 7: "E_PARAM", 8: "E_GRAMMAR", 9: "E_PARAM"}
    assert err.count("deepinfer: line 9: E_GRAMMAR") == 1  # of the prompt as a whole, and said once
    assert [sample["finish_detail"] for sample in rows[8]["outputs"]] == ["so_invalid_grammar"] * 2
    assert "deepinfer: line 8: E_PARAM: response_format: type is 'xml'; allowed: one of text, json_object" in err


@pytest.mark.parametrize("option", ["--json-schema", "--grammar"])
def test_file_of_a_grammar_that_cannot_be_read_is_a_usage_error(run: Run, tmp_path: Path, option: str) -> None:
    bad = tmp_path / "bad"
    bad.write_bytes(b"ab\xff")
    for path, reason in ((tmp_path / "none", "No such file or directory"), (bad, "it is not UTF-8 (byte 2)")):
        status, out, err = run("a", option, path)
        assert (status, out) == (2, b"")
        assert err == (
            f"deepinfer: E_INPUT: cannot read the file of {option}, {path}\n"
            f"  reason: {reason}\n"
            f"  remedy: check {option}\n"
        )


def test_huge_file_of_a_grammar_is_refused_by_its_size(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "g"
    path.write_text("é" * MAX_BYTES)
    status, out, err = run("a", "--grammar", path)
    assert (status, out) == (2, b"")
    assert err.startswith(f"deepinfer: E_PARAM: grammar has {MAX_BYTES + 1} bytes; at most {MAX_BYTES} are allowed")


def test_file_that_is_no_json_is_a_usage_error(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text('{"type": ')
    status, _, err = run("a", "--json-schema", path)
    assert status == 2
    assert err.startswith("deepinfer: E_PARAM: json_schema is not JSON\n  reason: Expecting value")
