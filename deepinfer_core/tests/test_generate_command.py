"""``deepinfer generate`` over toy parts, in process: what goes where, and the exit status."""

from __future__ import annotations

import fcntl
import io
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_toys import EOS, Faulty, ToyModel, ToyParts, save_tokenizer, solo_tokens

from deepinfer_core.cli import main
from deepinfer_core.requests.prompts import MAX_LINE_BYTES
from deepinfer_core.types import ModelCard

Run = Callable[..., tuple[int, bytes, str]]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toy")
    save_tokenizer(path)
    return path


@pytest.fixture
def parts() -> dict[str, Any]:
    """Parts of the toy engine that a test replaces."""
    return {}


@pytest.fixture
def run(
    model_dir: Path, parts: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Run:
    """Runs the command; gives status, standard output and standard error."""
    card = ModelCard(path=model_dir, architecture="Toy", model_type="toy", config={})

    def assemble(config: Any, **_: Any) -> ToyParts:
        sys.stderr.write("backend: toy (test)\n")
        return ToyParts(config, card=card, **parts)

    monkeypatch.setattr("deepinfer_core.assembly.assemble.assemble", assemble)

    def call(*arguments: object, stdin: bytes = b"") -> tuple[int, bytes, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        status = main(["generate", *map(str, arguments)])
        out, err = capfdbinary.readouterr()
        return status, out, err.decode()

    return call


def answer(prompt: str, count: int) -> bytes:
    ids = solo_tokens([257, *prompt.encode()], count)
    return bytes(token for token in ids if token < 256).decode("utf-8", "replace").encode()


def records(out: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.decode().splitlines()]


def codes(rows: list[dict[str, Any]]) -> list[str]:
    return [row.get("error", {}).get("code", "") for row in rows]


GREEDY = ("--temperature", 0, "--max-tokens", 6)


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_one_prompt_prints_its_text_only(run: Run, stream: str) -> None:
    status, out, err = run("import os", *GREEDY, stream)
    assert (status, out) == (0, answer("import os", 6) + b"\n")
    assert err == "backend: toy (test)\n"


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_several_prompts_have_headers_in_order(run: Run, stream: str) -> None:
    status, out, _ = run("a", "b", *GREEDY, stream)
    assert status == 0
    assert out == b"==> 1 <==\n" + answer("a", 6) + b"\n\n==> 2 <==\n" + answer("b", 6) + b"\n"


def test_json_lines_parse_strictly_and_have_every_field(run: Run) -> None:
    status, out, err = run("--json", "a", "b", *GREEDY, "--seed", 3)
    assert status == 0
    first, second = records(out)
    assert (first["index"], second["index"]) == (0, 1)
    assert first["text"].encode() == answer("a", 6)
    assert first["prompt"] == "a"
    assert first["num_prompt_tokens"] == 2
    assert first["num_output_tokens"] == len(first["token_ids"])
    assert first["finish_reason"] in ("stop", "length")
    assert isinstance(first["seed"], int)
    assert "error" not in first
    assert err == "backend: toy (test)\n"


def test_json_stream_gives_pieces_and_the_result(run: Run) -> None:
    status, out, _ = run("--json", "--stream", "a", *GREEDY)
    *pieces, last = records(out)
    assert status == 0
    assert "".join(piece["delta"] for piece in pieces) == last["text"]
    assert [token for piece in pieces for token in piece["token_ids"]] == last["token_ids"]
    assert set(pieces[0]) == {"index", "id", "delta", "token_ids"}


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_samples_are_printed_in_order_below_their_numbers(run: Run, stream: str) -> None:
    status, out, _ = run("a", "-n", 2, *GREEDY, stream)
    assert status == 0
    assert out == b"==> 1.1 <==\n" + answer("a", 6) + b"\n\n==> 1.2 <==\n" + answer("a", 6) + b"\n"


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_json_line_lists_all_samples_and_pieces_name_theirs(run: Run, stream: str) -> None:
    status, out, _ = run("--json", stream, "a", "b", "--num-samples", 3, "--max-tokens", 6, "--seed", 3)
    assert status == 0
    rows = records(out)
    results = [row for row in rows if "outputs" in row]
    assert [row["index"] for row in results] == [0, 1]
    for row in results:
        assert [sample["index"] for sample in row["outputs"]] == [0, 1, 2]
        assert len({sample["seed"] for sample in row["outputs"]}) == 3
        first = row["outputs"][0]
        assert {key: row[key] for key in first if key != "index"} == {k: v for k, v in first.items() if k != "index"}
        if stream == "--stream":
            for sample in row["outputs"]:
                own = [p for p in rows if "delta" in p and (p["index"], p["sample"]) == (row["index"], sample["index"])]
                assert "".join(piece["delta"] for piece in own) == sample["text"]


def test_line_has_its_own_number_of_samples(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "a", "n": 3}\n{"prompt": "b"}\n{"prompt": "", "n": 2}\n')
    status, out, err = run("--prompts-file", source, "--json", *GREEDY)
    assert status == 1
    assert [len(row.get("outputs", [0])) for row in records(out)] == [3, 1, 2]
    assert err.count("E_PROMPT") == 1


def test_bad_jsonl_lines_are_records_at_their_place_and_the_status_is_one(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "a", "id": "x"}\n\n[1]\nnull\n{bad\n{"prompt": "b", "max_tokens": 2}\n')
    status, out, err = run("--prompts-file", source, "--json", *GREEDY)
    assert status == 1
    rows = records(out)
    assert [row["index"] for row in rows] == list(range(6))
    assert [row["line"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert codes(rows) == [
        "",
        "E_INPUT",
        "E_INPUT",
        "E_INPUT",
        "E_INPUT",
        "",
    ]
    assert rows[0]["id"] == "x"
    assert rows[0]["text"].encode() == answer("a", 6)
    assert len(rows[5]["token_ids"]) <= 2
    assert "deepinfer: line 3: E_INPUT: line 3 is list, not an object" in err


def test_text_file_gives_one_result_per_line(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_bytes(b"a\n\n\xff\nb\n")
    status, out, _ = run("--prompts-file", source, "--json", *GREEDY)
    rows = records(out)
    assert status == 1
    assert codes(rows) == ["", "E_PROMPT", "E_PROMPT", ""]
    assert rows[3]["text"].encode() == answer("b", 6)


@pytest.mark.parametrize("arguments", [("-",), ("--prompts-file", "-")])
def test_standard_input_is_read_by_lines(run: Run, arguments: tuple[str, ...]) -> None:
    status, out, _ = run(*arguments, "--json", *GREEDY, stdin=b"a\nb\n")
    assert status == 0
    assert [row["text"].encode() for row in records(out)] == [answer("a", 6), answer("b", 6)]


def test_out_file_gets_the_records_and_standard_output_nothing(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    target.write_text("old\n" * 100)
    status, out, _ = run("a", "b", *GREEDY, "--out", target)
    assert (status, out) == (0, b"")
    assert [row["text"].encode() for row in records(target.read_bytes())] == [answer("a", 6), answer("b", 6)]


@pytest.mark.parametrize(("name", "written"), [("/dev/null", False), ("/dev/stdout", True), ("-", True)])
def test_out_that_is_no_regular_file_is_written_as_it_is(
    run: Run, name: str, written: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, _ = run("a", *GREEDY, "--out", name)
    assert status == 0
    assert bool(out) is written
    assert list(tmp_path.iterdir()) == []


def test_out_that_is_full_is_an_output_error(run: Run) -> None:
    status, out, err = run("a", *GREEDY, "--out", "/dev/full")
    assert (status, out) == (74, b"")
    assert "deepinfer: E_OUTPUT: cannot write /dev/full\n  reason: No space left on device\n  remedy: make room" in err


def test_line_of_out_that_the_disk_does_not_hold_is_taken_back(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    run("a", "b", *GREEDY, "--seed", "1", "--out", target)
    first = target.read_bytes().index(b"\n") + 1
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails, as on a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (first + first // 2, limits[1]))
    try:
        status, _, err = run("a", "b", *GREEDY, "--seed", "1", "--out", target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert status == 74, err
    (row,) = records(target.read_bytes())
    assert row["text"].encode() == answer("a", 6)


def test_out_that_another_process_writes_is_refused_and_stays(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    target.write_bytes(b"of another run\n")
    with target.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        status, _, err = run("a", *GREEDY, "--out", target)
    assert status == 74
    assert f"E_OUTPUT: another process writes {target}\n" in err
    assert target.read_bytes() == b"of another run\n"


def test_out_that_is_a_pipe_gets_the_records(run: Run, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        status, _, _ = run("a", *GREEDY, "--out", pipe)
        got = os.read(reader, 1 << 16)
    finally:
        os.close(reader)
    assert status == 0
    assert [row["text"].encode() for row in records(got)] == [answer("a", 6)]


def test_seed_of_any_sign_is_accepted_in_every_place(run: Run) -> None:
    status, out, _ = run("a", "--json", *GREEDY, "--seed", -1)
    (first,) = records(out)
    again_status, out, _ = run("a", "--json", *GREEDY, "--seed", 2**64 - 1)
    assert (status, again_status) == (0, 0)
    assert first["seed"] == records(out)[0]["seed"]
    _, out, _ = run("-", "--format", "jsonl", "--json", *GREEDY, stdin=b'{"prompt": "a", "seed": -%d}' % 2**200)
    assert records(out)[0]["seed"] == 0


def test_line_beyond_the_limit_fails_alone(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_bytes(b"x" * (MAX_LINE_BYTES + 1) + b"\nb\n")
    status, out, _ = run("--prompts-file", source, "--json", *GREEDY)
    rows = records(out)
    assert status == 1
    assert codes(rows) == ["E_INPUT", ""]
    assert rows[0]["error"]["message"] == "line 1 is longer than 16777216 bytes"
    assert rows[1]["text"].encode() == answer("b", 6)


def test_prompt_argument_that_is_not_utf8_is_a_record(run: Run) -> None:
    status, out, _ = run("a\udcff", "b", "--json", *GREEDY)
    assert status == 1
    assert codes(records(out)) == ["E_PROMPT", ""]


def test_failed_prompt_in_text_form_keeps_its_place(run: Run) -> None:
    status, out, err = run("", "b", *GREEDY)
    assert status == 1
    assert out == b"==> 1 <==\n\n\n==> 2 <==\n" + answer("b", 6) + b"\n"
    assert "deepinfer: prompt 1: E_PROMPT: the prompt is empty" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a", "--top-p", "2"), "deepinfer: E_PARAM: top_p is 2.0; allowed: a number > 0 and <= 1, in 32 bits\n"),
        (("a", "--min-p", "2"), "deepinfer: E_PARAM: min_p is 2.0; allowed: a number >= 0 and < 1, in 32 bits\n"),
        (
            ("a", "--max-tokens", "-1"),
            "deepinfer: E_PARAM: max_tokens is -1; allowed: an integer from 1 to",
        ),
        (
            ("a", "--temperature", "nan"),
            "deepinfer: E_PARAM: temperature is nan; allowed: a finite number >= 0 (0 means greedy), in 32 bits\n",
        ),
        (
            ("a", "--regex", "x"),
            "backend: toy (test)\ndeepinfer: E_UNSUPPORTED: structured output needs a grammar engine",
        ),
        (("a", "--regex", "(" * 200), "deepinfer: E_PARAM: regex nests 200 groups; at most 128 are allowed\n"),
        (("a", "--regex", "a", "--json-object"), "deepinfer: E_PARAM: regex and json_object are given together\n"),
        (("a", "--regex", "a", "--ignore-eos"), "deepinfer: E_PARAM: ignore_eos is True; allowed: false with"),
        (
            ("a", "--grammar", "/nonexistent/x"),
            "deepinfer: E_INPUT: cannot read the file of --grammar, /nonexistent/x\n",
        ),
        (("a", "-n", "0"), "deepinfer: E_PARAM: n is 0; allowed: an integer from 1 to 128\n"),
        (
            ("a", "--draft-tokens", "2"),
            "backend: toy (test)\ndeepinfer: E_UNSUPPORTED: draft_tokens is 2, but this model offers no drafts",
        ),
        (("a", "--ep", "2"), "deepinfer: E_UNSUPPORTED: ep=2 was asked for"),
        ((), "deepinfer: E_USAGE: no prompts were given"),
        (("a", "--format", "jsonl"), "deepinfer: E_USAGE: --format is for a prompts file"),
        (("a", "--prompts-file", "x"), "deepinfer: E_USAGE: prompts as arguments and --prompts-file were both given"),
        (("--prompts-file", "/nonexistent/x"), "deepinfer: E_INPUT: cannot read the prompts file /nonexistent/x"),
        (("--prompts-file", "/"), "deepinfer: E_INPUT: cannot read the prompts file /"),
        (("a", "--stop-token-id", "260"), "backend: toy (test)\ndeepinfer: E_PARAM: stop_token_ids is 260; allowed:"),
        (
            ("a", "--kv-memory", "100B"),
            "backend: toy (test)\ndeepinfer: E_CAPACITY: the caches of one sequence need",
        ),
        (("a", "--max-model-len", "999"), "backend: toy (test)\ndeepinfer: E_CONFIG: max_model_len 999 is beyond"),
    ],
)
def test_refusal_is_one_error_with_status_two_and_no_output(run: Run, arguments: tuple[str, ...], message: str) -> None:
    status, out, err = run(*arguments)
    assert status == 2
    assert out == b""
    assert err.startswith(message)


def test_results_that_cannot_be_opened_end_as_results_that_cannot_be_written(run: Run) -> None:
    status, out, err = run("a", "--out", "/nonexistent/x")
    assert (status, out) == (74, b"")
    assert err.startswith("deepinfer: E_OUTPUT: cannot write /nonexistent/x\n  reason: No such file or directory\n")


def test_out_on_a_file_of_what_is_observed_is_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    for option in ("--step-log", "--trace-file"):
        status, out, err = run("a", "--out", path, option, f"{tmp_path}/./r.jsonl")
        assert (status, out) == (2, b"")
        assert f"E_USAGE: --out and {option} are both {path}" in err
    assert not path.exists()


def test_out_on_the_prompts_file_is_refused(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_text("a\n")
    status, _, err = run("--prompts-file", source, "--out", source)
    assert (status, source.read_text()) == (2, "a\n")
    assert "E_USAGE: --out is the prompts file" in err


def test_model_that_never_stops_ends_at_the_default_limit(run: Run, parts: dict[str, Any]) -> None:
    class Forever(ToyModel):
        def logits(self, hidden: Any) -> Any:
            out = super().logits(hidden)
            out[:, EOS] = -1
            return out

    parts["model"] = Forever()
    _, out, _ = run("a", "--json", "--temperature", 0)
    (row,) = records(out)
    assert (row["finish_reason"], row["num_output_tokens"]) == ("length", 128)


def test_some_failed_by_a_fault_is_status_one(run: Run, parts: dict[str, Any]) -> None:
    def fault(method: str, call: int, go: Callable[[], Any]) -> Any:
        if call == 1:
            raise RuntimeError("boom")
        return go()

    parts["model"] = Faulty(ToyModel(), fault, "forward")
    status, out, err = run("a", "b", "--max-num-seqs", 1, "--json", *GREEDY)
    assert status == 1
    assert records(out)[0]["finish_reason"] == "engine"
    assert "E_ENGINE: model.forward of toy (acme-model 0.1) failed in step 1" in err
    assert "Traceback" not in err
    parts["model"] = Faulty(ToyModel(), fault, "forward")
    status, _, err = run("a", "--debug", "--max-num-seqs", 1, *GREEDY)
    assert status == 1
    traced, message = err.split("deepinfer: prompt 1: E_ENGINE: ")
    assert 'raise RuntimeError("boom")' in traced
    assert "--debug" in message


def test_interrupt_keeps_what_is_finished(run: Run, parts: dict[str, Any], tmp_path: Path) -> None:
    def fault(method: str, call: int, go: Callable[[], Any]) -> Any:
        if call == 5:
            signal.raise_signal(signal.SIGINT)
        return go()

    parts["model"] = Faulty(ToyModel(), fault, "forward")
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "a", "max_tokens": 99}\n{"prompt": "b", "max_tokens": 2}\n')
    target = tmp_path / "out.jsonl"
    status, out, err = run("--prompts-file", source, "--out", target, "--ignore-eos", "--temperature", 0)
    assert (status, out) == (130, b"")
    notice = "deepinfer: finishing the step; press Ctrl-C again to stop now\n"
    assert err == f"backend: toy (test)\n{notice}deepinfer: interrupted\n"
    rows = records(target.read_bytes())
    assert [(row["index"], row["finish_reason"]) for row in rows] == [(0, "abort"), (1, "length")]
    assert len(rows[0]["token_ids"]) == 5
