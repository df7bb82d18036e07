"""Questions as messages of a chat, over the toy parts of the core's tests: what is asked, and what is scored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from eval_files import write_lines

from deepinfer_core.cli import main
from deepinfer_core.types import ModelCard

CORE_TESTS = Path(__file__).parents[3] / "deepinfer_core" / "tests"
ITEMS = [{"id": "a", "question": "How many?", "answer": 42}, {"id": "b", "question": "More?", "answer": 7}]


@pytest.fixture
def prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The prompts that a toy sees, which reasons and then says 42."""
    pytest.importorskip("deepseek_recipe")
    monkeypatch.syspath_prepend(str(CORE_TESTS))
    from chat_toys import END, chat_parts, chat_tokenizer, save_chat_tokenizer
    from engine_toys import ToyParts

    seen: list[str] = []
    save_chat_tokenizer(tmp_path)
    card = ModelCard(path=tmp_path, architecture="Toy", model_type="toy", config={})

    def assemble(config: Any, **_: Any) -> Any:
        parts = ToyParts(config, card=card, **chat_parts([f"is it 7?{END}It is 42."], chat_tokenizer()))
        library = chat_tokenizer()._library
        parts.model.check_prompt = lambda ids: seen.append(library.decode(list(ids), skip_special_tokens=False))
        return parts

    monkeypatch.setattr("deepinfer_core.assembly.assemble.assemble", assemble)
    monkeypatch.chdir(tmp_path)
    write_lines(Path("items.jsonl"), ITEMS)
    Path("template.txt").write_text("Question: {question}\nEnd with a number.")
    return seen


def test_content_is_scored_and_reasoning_stands_beside_it(
    prompts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--chat", "--template", "template.txt", "-n", "2", "--scorer", "numeric", "--seed", "4")
    assert main(["eval", "generate", "items.jsonl", "--out", "a.jsonl", *options]) == 0
    assert len(prompts) == 2
    assert all("End with a number." in prompt and "Question: " in prompt for prompt in prompts)
    header, *answers = map(json.loads, Path("a.jsonl").read_text().splitlines())
    assert "max_tokens" not in header["parameters"]  # that of a chat
    assert header["parameters"]["template"].startswith("Question: ")
    assert {(answer["text"], answer["reasoning"]) for answer in answers} == {("It is 42.", "is it 7?")}
    capsys.readouterr()
    assert main(["eval", "score", "a.jsonl", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["right"] == 2  # the 7 of the reasoning is no answer


def test_another_way_to_chat_is_another_run(prompts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "generate", "items.jsonl", "--out", "a.jsonl", "--chat"]) == 0
    assert main(["eval", "generate", "items.jsonl", "--out", "a.jsonl", "--chat", "--no-thinking"]) == 5
    assert "chat is " in capsys.readouterr().err
    assert main(["eval", "generate", "items.jsonl", "--out", "a.jsonl"]) == 5


def test_plain_questions_need_no_chat(prompts: list[str]) -> None:
    assert main(["eval", "generate", "items.jsonl", "--out", "a.jsonl", "--max-tokens", "3"]) == 0
    assert prompts == ["How many?", "More?"]
