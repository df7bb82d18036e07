"""Tokenizer: end tokens of all files, the begin token, files that are missing or broken."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from deepinfer_core.errors import TokenizerError
from deepinfer_core.text.tokenizer import Tokenizer


@pytest.fixture
def folder(checkpoint: Path, tmp_path: Path) -> Path:
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(checkpoint / name, tmp_path / name)
    return tmp_path


def write(path: Path, **changes: object) -> None:
    data = json.loads(path.read_text("utf-8")) if path.exists() else {}
    path.write_text(json.dumps({**data, **changes}), "utf-8")


def test_end_tokens_of_tokenizer_model_and_generation_config_all_count(folder: Path) -> None:
    write(folder / "generation_config.json", eos_token_id=[2, 3])
    config = {"eos_token_id": 4, "text_config": {"eos_token_id": [5]}}
    assert Tokenizer.load(folder, config).eos_ids == {1, 2, 3, 4, 5}


def test_no_end_token_anywhere_is_none(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    write(folder / "tokenizer_config.json", eos_token=None)
    assert Tokenizer.load(folder, {}).eos_ids == frozenset()


def test_begin_token_is_added_once(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("import os")
    assert ids == [0, 721, 681]
    assert tokenizer.encode("<｜begin▁of▁sentence｜>import os") == ids
    assert tokenizer.decode(ids) == "import os"


def test_begin_token_is_left_out_when_not_configured(folder: Path) -> None:
    write(folder / "tokenizer_config.json", add_bos_token=False)
    assert Tokenizer.load(folder, {}).encode("import os") == [721, 681]


def test_nothing_is_known_of_the_length_where_tokens_swallow_white_space(folder: Path) -> None:
    assert Tokenizer.load(folder, {}).least_tokens("x" * 10_000) > 1
    added = json.loads((folder / "tokenizer.json").read_text("utf-8"))["added_tokens"]
    write(folder / "tokenizer.json", added_tokens=[{**token, "rstrip": True} for token in added])
    assert Tokenizer.load(folder, {}).least_tokens("x" * 10_000) == 0


def test_spelling_shows_special_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.spelling(1).decode() == "<｜end▁of▁sentence｜>"
    assert tokenizer.token_bytes[1] == b""
    assert tokenizer.spelling(9999) == b""


def test_missing_tokenizer_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json in"):
        Tokenizer.load(folder, {})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tokenizer.json", "{bad"),
        ("tokenizer.json", "{}"),
        ("tokenizer_config.json", "{bad"),
        ("tokenizer_config.json", "[]"),
        ("generation_config.json", '{"eos_token_id": "x"}'),
        ("generation_config.json", '{"eos_token_id": true}'),
        ("tokenizer_config.json", '{"eos_token": "<nowhere>"}'),
        ("tokenizer_config.json", '{"add_bos_token": "yes"}'),
        ("tokenizer_config.json", '{"add_bos_token": true}'),
    ],
)
def test_broken_file_is_a_tokenizer_error(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text, "utf-8")
    with pytest.raises(TokenizerError) as caught:
        Tokenizer.load(folder, {})
    assert caught.value.remedy


def test_decoder_of_another_kind_is_refused(folder: Path) -> None:
    write(folder / "tokenizer.json", decoder=None)
    with pytest.raises(TokenizerError, match="decoder is None, expected ByteLevel"):
        Tokenizer.load(folder, {})


@pytest.mark.parametrize("text", ["{", "[" * 100_000])
def test_settings_that_are_no_json_are_told(folder: Path, text: str) -> None:
    (folder / "tokenizer_config.json").write_text(text, "utf-8")
    with pytest.raises(TokenizerError, match="cannot read"):
        Tokenizer.load(folder, {})
