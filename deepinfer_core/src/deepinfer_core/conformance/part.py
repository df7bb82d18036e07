"""The part under test when it is no backend: how it is made, and what it is made with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

import pytest
from attrs import define, field

from deepinfer_core.config import EngineConfig
from deepinfer_core.conformance.options import option
from deepinfer_core.plugins.hooks import Hooks
from deepinfer_core.plugins.manager import PluginManager
from deepinfer_core.plugins.registry import PluginRecord


def not_offered(what: str) -> NoReturn:
    """Skip the test: the plugin refuses this by a typed error, and says so to users as well."""
    pytest.skip(f"not offered: {what}")


@define(eq=False)
class Part:
    """The plugin under test, and the backend that it runs on."""

    manager: PluginManager
    owner: PluginRecord
    params: Mapping[str, Any] = field(factory=dict)
    """Of ``--params``."""
    backend_name: str = "cpu"
    _backend: Any = None

    @property
    def hooks(self) -> Hooks:
        return Hooks(self.manager)

    @property
    def backend(self) -> Any:
        """The backend, made on first use; :meth:`close` closes it."""
        if self._backend is None:
            record = self.manager.require("backend", self.backend_name)
            self._backend = self.hooks.backend_create(record, None, settings())
        return self._backend

    def close(self) -> None:
        if self._backend is not None:
            self._backend.close()
            self._backend = None


def settings(**given: Any) -> EngineConfig:
    """Settings of an engine: the defaults, and ``given``. The environment has no say."""
    return EngineConfig.resolve(given, environ={}, flag_origin="argument")


def params_of(config: pytest.Config) -> dict[str, Any]:
    """The object of ``--params``. Raises UsageError for anything else."""
    text = option(config, "params")
    if text is None:
        return {}
    try:
        params = json.loads(str(text))
    except ValueError as error:
        raise pytest.UsageError(f"--params is not JSON: {error}") from error
    if not isinstance(params, dict):
        raise pytest.UsageError(f"--params must be a JSON object, got {text}")
    return params
