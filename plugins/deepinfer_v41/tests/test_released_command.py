"""``deepinfer released``: sizes without weights, and what they would need."""

from __future__ import annotations

import json
import os
import resource
import signal

import pytest

from deepinfer_core import cli
from deepinfer_core.assembly.model_card import read_model_card
from deepinfer_core.errors import ConfigError
from deepinfer_core.text.tokenizer import Tokenizer
from deepinfer_v41.config import V41Config
from deepinfer_v41.plugin import deepinfer_model_match
from deepinfer_v41.released import RELEASED


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in [name for name in os.environ if name.startswith("DEEPINFER_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def folder(tmp_path, capsys):
    path = tmp_path / "released"
    assert cli.main(["released", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: 40 layers, width 5,120, no weights\n"
    return path


def test_folder_has_the_released_configuration_and_a_word_for_each_id(folder):
    card = read_model_card(folder)
    assert card.config == RELEASED
    assert Tokenizer.load(folder, card.config).vocab_size == 129280
    assert not list(folder.glob("*.safetensors"))


def test_match_tells_the_sizes_of_the_weights_with_drafts_and_without(folder):
    match = deepinfer_model_match(read_model_card(folder))
    without, drafted = match.weight_sizes(0), match.weight_sizes(5)
    assert without.num_bytes == pytest.approx(300e9 + 199e9, rel=0.02)  # 199 GB of Engram tables
    assert without.values < drafted.values
    assert without.num_bytes < drafted.num_bytes


def test_match_gives_the_same_model_with_fewer_layers(folder):
    match = deepinfer_model_match(read_model_card(folder))
    config = V41Config.from_dict(match.with_layers(8))
    assert (config.num_hidden_layers, config.hidden_size, config.n_routed_experts) == (8, 5120, 384)
    with pytest.raises(ConfigError, match="at least 6 hold one of each kind, and the model has 40"):
        match.with_layers(41)


def test_small_checkpoint_is_cut_down_as_well(folder):
    from importlib.resources import files

    shipped = files("deepinfer_v41").joinpath("checkpoints/v41-tiny")
    match = deepinfer_model_match(read_model_card(str(shipped)))
    config = V41Config.from_dict(match.with_layers(6))
    assert (config.num_hidden_layers, config.num_nextn_predict_layers, config.hidden_size) == (6, 2, 256)


@pytest.mark.parametrize("was_there", [True, False])
def test_failure_leaves_nothing_that_would_refuse_the_next_run(tmp_path, capsys, monkeypatch, was_there):
    path = tmp_path / "released"
    if was_there:
        path.mkdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails, as on a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))  # config.json fits, tokenizer.json does not
    try:
        assert cli.main(["released", str(path)]) == 74
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert f"E_OUTPUT: cannot write {path}\n  reason: File too large\n" in capsys.readouterr().err
    assert path.exists() is was_there
    assert cli.main(["released", str(path)]) == 0


def test_failure_takes_away_nothing_that_somebody_else_put_there_meanwhile(tmp_path, monkeypatch):
    folder = tmp_path / "m"

    def fails(path, _config):
        path.mkdir()
        (path / "config.json").write_text("{}")
        (path / "notes").write_text("mine")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("deepinfer_v41.released_command.write_model", fails)
    assert cli.main(["released", str(folder)]) == 74
    assert [entry.name for entry in folder.iterdir()] == ["notes"]


def test_folder_that_holds_something_is_left_alone(tmp_path, capsys):
    (tmp_path / "tokenizer.json").write_text("mine")
    assert cli.main(["released", str(tmp_path)]) == 2
    assert f"E_USAGE: {tmp_path} holds tokenizer.json" in capsys.readouterr().err
    assert [entry.read_text() for entry in tmp_path.iterdir()] == ["mine"]
    assert cli.main(["released", ""]) == 2
    assert "E_USAGE: the folder has no name" in capsys.readouterr().err


def test_folder_that_cannot_be_written_is_an_output_error(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main(["released", str(tmp_path / "file")]) == 74
    err = capsys.readouterr().err
    assert "E_OUTPUT: cannot write" in err
    assert "remedy: give a new folder in a place that can be written\n" in err


def test_data_is_json_where_it_is_asked_for(tmp_path, capsys):
    assert cli.main(["--json", "released", str(tmp_path / "m")]) == 0
    assert json.loads(capsys.readouterr().out)["layers"] == 40
