"""Errors about a setting send the reader to where its value is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepinfer_core.assembly.setting_names import settings_named_as_written
from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import CapacityError, ConfigError, DeepInferError


def raised(config: EngineConfig, error: DeepInferError) -> DeepInferError:
    with pytest.raises(type(error)) as caught, settings_named_as_written(config):
        raise error
    return caught.value


def too_many() -> ConfigError:
    return ConfigError(
        "draft_tokens is 9", reason="too many", remedy="set --draft-tokens to 4", details={"field": "draft_tokens"}
    )


def test_remedy_names_what_the_writer_wrote(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("draft_tokens = 9\n")
    resolve = EngineConfig.resolve
    for config, remedy in (
        (resolve({"draft_tokens": 9}, environ={}), "set --draft-tokens to 4"),
        (resolve({}, environ={}), "set --draft-tokens to 4"),
        (resolve({"draft_tokens": 9}, environ={}, flag_origin="argument"), "set --draft-tokens to 4"),
        (resolve({}, file=path, environ={}), f"set draft_tokens in file {path} to 4"),
        (resolve({}, environ={"DEEPINFER_DRAFT_TOKENS": "9"}), "set DEEPINFER_DRAFT_TOKENS to 4"),
        (resolve({}, environ={}, recorded={"draft_tokens": 9}), "set --draft-tokens to 4"),
    ):
        error = raised(config, too_many())
        assert (error.remedy, error.reason) == (remedy, "too many")


def test_place_stands_behind_the_reason_where_the_remedy_names_no_option() -> None:
    config = EngineConfig.resolve({}, environ={"DEEPINFER_KV_MEMORY": "9"})
    error = CapacityError("too little", remedy="use --kv-memory-like things", details={"field": "kv_memory"})
    assert raised(config, error).reason == "set by DEEPINFER_KV_MEMORY"
    assert error.remedy == "use --kv-memory-like things"


def test_errors_about_something_else_stay_as_they_are() -> None:
    config = EngineConfig.resolve({}, environ={"DEEPINFER_DRAFT_TOKENS": "9"})
    error = ConfigError("no", remedy="leave --draft-tokens out", details={"field": "logprobs"})
    assert raised(config, error).remedy == "leave --draft-tokens out"
