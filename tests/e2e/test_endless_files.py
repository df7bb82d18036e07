"""Files read as a whole: every option that takes one refuses what is larger than any memory at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deepinfer_core.cli import main

COMMANDS = {
    "results to repeat": "replay HUGE",
    "results to audit": "audit HUGE",
    "tools": "generate --messages ITEMS --tools HUGE",
    "data set": "eval generate HUGE --out OUT --scorer exact_match",
    "template": "eval generate ITEMS --out OUT --scorer exact_match --template HUGE",
    "answers": "eval score HUGE",
    "baselines": "ppl --baseline HUGE",
    "workload": "ppl --baseline OUT --update --workload HUGE.toml",
    "text to verify": "verify-replay --level 2 --text HUGE",
    "text to cut prompts from": "bench decode --batch 1 --prompt 8 --text HUGE",
    "settings": "generate hi --config HUGE",
    "lock": "generate hi --plugin-lock HUGE",
    "schema": "generate hi --json-schema HUGE",
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_file_beyond_every_limit_is_refused(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("huge", "huge.toml"):
        with (tmp_path / name).open("wb") as sparse:
            sparse.truncate(1 << 40)
    items = tmp_path / "items.jsonl"
    items.write_text(json.dumps({"id": "a", "question": "b", "answer": "c"}) + "\n")
    paths = {"HUGE": "huge", "ITEMS": "items.jsonl", "OUT": "out", "HUGE.toml": "huge.toml"}
    arguments = [str(tmp_path / paths[word]) if word in paths else word for word in command.split()]
    status = main(["--json", *arguments])
    error = json.loads(capsys.readouterr().err.splitlines()[-1])["error"]
    assert status in (2, 3), error
    assert error["code"] in ("E_INPUT", "E_BASELINE", "E_CONFIG", "E_PLUGIN_LOCK", "E_PARAM"), error
    assert error["remedy"] or "at most" in error["message"]
    assert not (tmp_path / "out").exists()
