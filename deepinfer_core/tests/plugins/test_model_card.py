"""Every way in which a model folder can be wrong, and its message."""

from __future__ import annotations

import pytest

from deepinfer_core.assembly.model_card import MAX_CONFIG_BYTES, read_model_card
from deepinfer_core.errors import DeepInferError


def refusal(folder) -> DeepInferError:
    with pytest.raises(DeepInferError) as caught:
        read_model_card(folder)
    assert caught.value.exit_status == 4
    return caught.value


def with_config(tmp_path, text: str | bytes):
    (tmp_path / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    return tmp_path


def test_card_of_a_good_folder_has_the_architecture(tmp_path):
    card = read_model_card(with_config(tmp_path, '{"architectures": ["A"], "model_type": "a", "x": 1}'))
    assert (card.path, card.architecture, card.model_type, card.config["x"]) == (tmp_path, "A", "a", 1)


def test_card_of_a_missing_folder_says_what_is_accepted(tmp_path):
    assert str(refusal(tmp_path / "none")) == (
        f"E_MODEL_MISSING: no such folder: {tmp_path / 'none'}\n"
        "  reason: a checkpoint is a folder with config.json, *.safetensors and tokenizer.json\n"
        "  remedy: give the path of a checkpoint folder, or leave --model out for the small checkpoint of an installed "
        "plugin"
    )


def test_card_of_a_folder_that_cannot_be_looked_at_says_why(tmp_path):
    name = "a" * 300  # as for a folder above it that may not be entered, Path.is_dir raises on some versions of Python
    error = refusal(tmp_path / name)
    assert error.what == f"cannot read the folder {tmp_path / name}"
    assert error.reason == "File name too long"


def test_card_of_a_hub_name_says_that_none_is_looked_up():
    assert "names on a model hub are not looked up" in refusal("deepseek-ai/DeepSeek-V4.1").remedy


def test_card_of_a_file_says_that_it_is_one(tmp_path):
    (tmp_path / "model.safetensors").write_text("x")
    assert refusal(tmp_path / "model.safetensors").what.endswith("model.safetensors is a file, and a model is a folder")


def test_card_of_a_folder_without_config_lists_what_is_there(tmp_path):
    assert refusal(tmp_path).reason == "the folder is empty"
    for name in "abcdefg":
        (tmp_path / name).write_text("")
    error = refusal(tmp_path)
    assert (error.code, error.reason) == ("E_MODEL_MISSING", "the folder holds: a, b, c, d, e, ...")


@pytest.mark.parametrize(
    ("text", "what", "reason"),
    [
        (b"\xff{}", "is not JSON", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        ("", "is not JSON", "Expecting value: line 1 column 1 (char 0)"),
        ("{bad", "is not JSON", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("[" * 100000, "is not JSON", None),
        ("[]", "holds a JSON list, expected an object", ""),
        ("null", "holds a JSON null, expected an object", ""),
        ("{}", "names no architecture", "architectures must be a list with a name, got None"),
        ('{"architectures": []}', "names no architecture", "architectures must be a list with a name, got []"),
        ('{"architectures": "A"}', "names no architecture", "architectures must be a list with a name, got 'A'"),
        ('{"architectures": ["A", "B"]}', "names several architectures: A, B", "an engine runs one"),
    ],
    ids=["bytes", "empty", "bad", "deep", "list", "null", "no_arch", "empty_arch", "text_arch", "two"],
)  # fmt: skip
def test_card_of_a_wrong_config_says_how(tmp_path, text, what, reason):
    error = refusal(with_config(tmp_path, text))
    assert error.code == "E_MODEL_CONFIG"
    assert error.what == f"{tmp_path / 'config.json'} {what}"
    if reason is not None:
        assert error.reason == reason


def test_card_of_a_huge_config_is_refused_unread(tmp_path):
    error = refusal(with_config(tmp_path, b" " * (MAX_CONFIG_BYTES + 1)))
    assert error.what.endswith("config.json is larger than 4 MiB")


def test_card_in_the_home_of_nobody_is_a_missing_folder():
    assert refusal("~nobody-has-this-name/m").what == "no such folder: ~nobody-has-this-name/m"
