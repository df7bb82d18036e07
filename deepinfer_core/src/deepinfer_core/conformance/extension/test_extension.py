"""What an extension is: something that its settings enable and that hears a hook."""

from __future__ import annotations

from typing import Any

import pytest

from deepinfer_core import hookspecs
from deepinfer_core.conformance.failures import fail, require, require_equal
from deepinfer_core.conformance.part import settings
from deepinfer_core.plugins.manager import PluginManager

pytestmark = pytest.mark.level("smoke")


def test_extension_implements_a_hook(manager: PluginManager, subject: Any) -> None:
    names = [name for name in vars(hookspecs) if name.startswith("deepinfer_")]
    found = [name for name in names if manager.hook(subject.record, name) is not None]
    require(found, "the module implements no hook, so that enabling it changes nothing", hooks=", ".join(names))


def test_extension_is_loaded_for_any_settings(subject: Any) -> None:
    for given in ({}, {"max_num_seqs": 4, "seed": 1, "debug": True}):
        config = settings(**given, **{"plugins.enable": [subject.name]})
        before = repr(config)
        manager = PluginManager.from_config(config)
        record = manager.registry.find("extension", subject.name)
        if record is None:
            fail("with it enabled it is not found", settings=given)
        manager.load(record)
        require(record.error is None, "it cannot be loaded with these settings", settings=given, got=record.error)
        require_equal(repr(config), before, "it changed the settings")
