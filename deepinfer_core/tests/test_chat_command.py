"""``deepinfer generate --messages`` and ``deepinfer chat`` from a pipe, in process."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_toys import DSML, END, chat_parts, chat_tokenizer, save_chat_tokenizer
from engine_toys import ToyParts, save_tokenizer

from deepinfer_core.cli import main
from deepinfer_core.types import ModelCard

pytest.importorskip("deepseek_recipe", reason="pip install 'deepinfer-core[chat]' to test chat")

Run = Callable[..., tuple[int, bytes, str]]
CALL = f'\n\n<{DSML} calls>\n<{DSML} invoke name="run">\n</{DSML} invoke>\n</{DSML} calls>'
ANSWER = f"why{END}so é"
GOOD = '{"messages": [{"role": "user", "content": "hi"}]}'


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toy")
    save_chat_tokenizer(path)
    return path


@pytest.fixture
def prompts() -> list[list[int]]:
    """The prompts that the engine saw."""
    return []


@pytest.fixture
def run(
    model_dir: Path,
    prompts: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> Run:
    """Runs a command over a toy that says ``answer``; gives status, standard output and standard error."""

    def call(*arguments: object, stdin: bytes = b"", answer: str = ANSWER, model: Path = model_dir) -> Any:
        card = ModelCard(path=model, architecture="Toy", model_type="toy", config={})

        def assemble(config: Any, **_: Any) -> ToyParts:
            parts = ToyParts(config, card=card, **chat_parts([answer], chat_tokenizer()))
            parts.model.check_prompt = lambda ids: prompts.append(list(ids))
            return parts

        monkeypatch.setattr("deepinfer_core.assembly.assemble.assemble", assemble)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        status = main([*map(str, arguments)])
        out, err = capfdbinary.readouterr()
        return status, out, err.decode()

    return call


def texts(prompts: list[list[int]]) -> list[str]:
    library = chat_tokenizer()._library
    return [library.decode(ids, skip_special_tokens=False) for ids in prompts]


def lines(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(rows) + "\n", "utf-8")
    return path


def records(out: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.decode().splitlines()]


# --- generate --messages ----------------------------------------------------------------------------------------


def test_bad_lines_give_error_records_and_the_others_their_answers(run: Run, tmp_path: Path) -> None:
    boss = '{"messages": [{"role": "boss", "content": "x"}], "id": "b"}'
    source = lines(tmp_path / "c.jsonl", GOOD, "", "[1]", "null", "{bad", boss, '{"prompt": "x"}', GOOD)
    status, out, err = run("generate", "--messages", source, "--json")
    rows = records(out)
    assert status == 1
    assert [row["index"] for row in rows] == list(range(8))
    assert [row["line"] for row in rows] == list(range(1, 9))
    codes = [row.get("error", {}).get("code", "") for row in rows]
    assert codes == ["", *["E_INPUT"] * 4, "E_MESSAGES", "E_MESSAGES", ""]
    assert (rows[0]["content"], rows[0]["reasoning"], rows[7]["content"]) == ("so é", "why", "so é")
    assert rows[5]["id"] == "b"
    assert "deepinfer: line 6: E_MESSAGES: messages[0] has the role 'boss'" in err


def test_text_form_shows_content_and_calls(run: Run, tmp_path: Path) -> None:
    tools = lines(tmp_path / "tools.json", '[{"name": "run"}]')
    source = lines(tmp_path / "c.jsonl", GOOD, GOOD)
    command = ("generate", "--messages", source, "--tools", tools, "--max-tokens", 500)
    status, out, _ = run(*command, answer=ANSWER + CALL)
    assert status == 0
    assert out.decode() == "==> 1 <==\nso é\n[run] {}\n\n==> 2 <==\nso é\n[run] {}\n"


def test_samples_stream_one_after_the_other(run: Run) -> None:
    command = ("generate", "--messages", "-", "--stream", "-n", 2, "--no-thinking")
    _, out, _ = run(*command, stdin=GOOD.encode(), answer="so é")
    assert out.decode() == "==> 1.1 <==\nso é\n\n==> 1.2 <==\nso é\n"
    _, out, _ = run(*command, "--json", stdin=GOOD.encode(), answer="so é")
    rows = records(out)
    for sample in (0, 1):
        assert "".join(row["delta"] for row in rows[:-1] if row["sample"] == sample) == "so é"
    assert [choice["content"] for choice in rows[-1]["choices"]] == ["so é", "so é"]


def test_out_file_holds_what_json_prints(run: Run, tmp_path: Path) -> None:
    source, out = lines(tmp_path / "c.jsonl", GOOD), tmp_path / "out.jsonl"
    assert run("generate", "--messages", source, "--out", out, "--seed", 1)[0] == 0
    (row,) = records(out.read_bytes())
    (printed,) = records(run("generate", "--messages", source, "--json", "--seed", 1)[1])
    assert printed.pop("times").keys() == row.pop("times").keys()  # of two runs
    assert {key: row[key] for key in printed} == printed
    assert set(row) - set(printed) == {"prompt_token_ids", "params", "run"}  # for a replay


def test_options_of_the_command_hold_unless_a_line_has_its_own(run: Run, prompts: list[list[int]]) -> None:
    own = '{"messages": [{"role": "user", "content": "hi"}], "thinking": true, "effort": "max"}'
    run("generate", "--messages", "-", "--no-thinking", stdin=f"{GOOD}\n{own}\n".encode())
    first, second = texts(prompts)
    assert first.endswith(END)
    assert "Reasoning Effort: 100 " in second


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x", "--messages", "-"], "E_USAGE: prompts as arguments and --messages were both given"),
        (["--messages", "-", "--format", "text"], "E_USAGE: --format is for a prompts file"),
        (["x", "--no-thinking"], "E_USAGE: --thinking is for conversations"),
        (["x", "--tools", "f.json"], "E_USAGE: --tools is for conversations"),
        (["--messages", "-", "--no-thinking", "--effort", "low"], "E_PARAM: effort is low and thinking is off"),
        (["--messages", "-", "--tools", "absent.json"], "E_INPUT: cannot read the tools file absent.json"),
        (["--messages", "-", "--tool-choice", "required"], "E_PARAM: tool_choice is 'required' and there are no"),
        (["--messages", "absent.jsonl"], "E_INPUT: cannot read the prompts file absent.jsonl"),
    ],
)
def test_wrong_use_is_refused_before_work_starts(run: Run, arguments: list[str], message: str) -> None:
    status, out, err = run("generate", *arguments)
    assert (status, out) == (2, b"")
    assert err.startswith(f"deepinfer: {message}")


@pytest.mark.parametrize("content", ["{bad", "{}", "[]", "3"])
def test_wrong_tools_file_is_refused(run: Run, tmp_path: Path, content: str) -> None:
    status, _, err = run("generate", "--messages", "-", "--tools", lines(tmp_path / "t.json", content))
    assert status == 2
    assert "E_INPUT: the tools file" in err


@pytest.mark.parametrize("command", [["generate", "--messages", "-"], ["chat"]])
def test_model_that_cannot_chat_ends_with_status_4(run: Run, tmp_path: Path, command: list[str]) -> None:
    save_tokenizer(tmp_path)
    status, out, err = run(*command, stdin=GOOD.encode(), model=tmp_path)
    assert (status, out) == (4, b"")
    assert "deepinfer: E_CHAT: this model cannot chat: its tokenizer lacks <｜begin▁of▁sentence｜>, " in err


@pytest.mark.parametrize("command", [["generate", "--messages", "-"], ["chat"]])
def test_missing_library_ends_with_status_4_before_the_model_loads(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "deepseek_recipe", None)
    status, out, err = run(*command, stdin=GOOD.encode())
    assert (status, out) == (4, b"")
    assert err.startswith("deepinfer: E_LIBRARY: chat needs the package deepseek-recipe\n")


# --- chat from a pipe -------------------------------------------------------------------------------------------


def test_each_line_is_a_turn_that_sees_those_before_it(run: Run, prompts: list[list[int]]) -> None:
    command = ("chat", "--no-thinking", "--system", "Be brief.")
    status, out, err = run(*command, stdin=b"one\n\ntwo\n/reset\nthree", answer="so é")
    assert (status, out.decode(), err) == (0, "so é\nso é\nso é\n", "")
    first, second, third = texts(prompts)
    assert first.endswith(f"<｜System｜>Be brief.<｜User｜>one<｜Assistant｜>{END}")
    assert second.endswith(f"one<｜Assistant｜>{END}so é<｜end▁of▁sentence｜><｜User｜>two<｜Assistant｜>{END}")
    assert "one" not in third


def test_exit_ends_before_the_rest(run: Run, prompts: list[list[int]]) -> None:
    assert run("chat", stdin=b"one\n/exit\ntwo\n")[0] == 0
    assert len(prompts) == 1


def test_reasoning_stays_off_standard_output(run: Run) -> None:
    assert run("chat", stdin=b"one\n")[1].decode() == "so é\n"


def test_json_answers_are_a_line_each(run: Run) -> None:
    rows = records(run("chat", "--json", stdin=b"one\ntwo\n")[1])
    assert [(row["turn"], row["content"], row["reasoning"]) for row in rows] == [(1, "so é", "why"), (2, "so é", "why")]


def test_turn_that_fails_leaves_no_trace_and_the_next_goes_on(run: Run, prompts: list[list[int]]) -> None:
    stdin = b"one\n" + b"x" * 5000 + b"\n\xff\ntwo\n"
    status, out, err = run("chat", "--no-thinking", stdin=stdin, answer="so")
    assert (status, out) == (1, b"so\nso\n")
    assert "E_PROMPT: the prompt has" in err
    assert "E_INPUT: line 3 is not UTF-8 (byte 0)" in err
    assert "xxx" not in texts(prompts)[-1]
    assert "one" in texts(prompts)[-1]


def test_answer_cut_at_its_limit_says_so(run: Run) -> None:
    _, out, err = run("chat", "--no-thinking", "--max-tokens", 2, stdin=b"one\n", answer="endless")
    assert out == b"en\n"
    assert "deepinfer: the answer was cut at its limit; see --max-tokens" in err


def test_answer_cut_where_the_context_ends_does_not_blame_max_tokens(run: Run) -> None:
    _, out, err = run("chat", "--no-thinking", "--max-model-len", 40, stdin=b"one\n", answer="endless" * 20)
    assert out.startswith(b"endl")
    assert "deepinfer: the answer was cut where the conversation reached --max-model-len; /reset begins another" in err
    assert "--max-tokens" not in err


def test_several_samples_are_refused(run: Run) -> None:
    status, _, err = run("chat", "-n", 2)
    assert status == 2
    assert err.startswith("deepinfer: E_USAGE: a chat goes on from one answer")
