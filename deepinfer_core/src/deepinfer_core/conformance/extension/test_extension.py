"""What an extension adds to the command line and to ``deepinfer doctor``, and how it begins and ends."""

from __future__ import annotations

import platform
import sys
from typing import Any

import pytest

from deepinfer_core import hookspecs
from deepinfer_core.conformance.failures import fail, require, require_equal
from deepinfer_core.conformance.part import settings
from deepinfer_core.errors import DeepInferError
from deepinfer_core.plugins.commands import load_command, plugin_commands
from deepinfer_core.plugins.manager import PluginManager
from deepinfer_core.types import DoctorCheck, HostInfo

HOST = HostInfo(os=sys.platform, machine=platform.machine(), python=platform.python_version())
REASONS = ("closed", "error", "interrupted")


def caller(manager: PluginManager, subject: Any, hook: str) -> Any:
    """The plugin's own implementation of a hook; skips the test where it has none."""
    found = manager.hook(subject.record, hook)
    if found is None:
        pytest.skip(f"it does not implement {hook}")
    return found


@pytest.mark.level("smoke")
def test_extension_implements_a_hook(manager: PluginManager, subject: Any) -> None:
    names = [name for name in vars(hookspecs) if name.startswith("deepinfer_")]
    found = [name for name in names if manager.hook(subject.record, name) is not None]
    require(found, "the module implements no hook, so that enabling it changes nothing", hooks=", ".join(names))


@pytest.mark.level("smoke")
def test_extension_is_loaded_for_any_settings_and_asked_once(subject: Any) -> None:
    """The settings come to a plugin that loads late as well, and are the same object to all."""
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
        manager.shutdown("closed")


@pytest.mark.level("smoke")
def test_commands_of_the_manifest_are_commands(manager: PluginManager, subject: Any) -> None:
    """Each name resolves to a command of click, which has a help text and shows it."""
    from click.testing import CliRunner

    mine = [c for c in plugin_commands([subject.record], settings().plugins, []) if c.owner is subject.record]
    if not mine:
        pytest.skip("its manifest declares no commands")
    for command in mine:
        try:
            found = load_command(manager, command)
        except DeepInferError as error:
            fail("a command of the manifest cannot be loaded", command=command.name, got=error)
        require(command.summary, "a command without a summary in the manifest", command=command.name)
        shown = CliRunner().invoke(found, ["--help"])
        require_equal(shown.exit_code, 0, "a command does not show its help", command=command.name, output=shown.output)
        wrong = CliRunner().invoke(found, ["--no-such-option-of-any-command"])
        require(wrong.exit_code not in (0, 1), "a wrong option is not refused as such", got=wrong.exit_code)


@pytest.mark.level("core")
def test_doctor_checks_are_well_formed_and_change_nothing(manager: PluginManager, subject: Any) -> None:
    found = caller(manager, subject, "deepinfer_doctor_checks")
    for _ in range(2):
        for checks in found(host=HOST):
            require(isinstance(checks, list | tuple), "deepinfer_doctor_checks returned no sequence", got=repr(checks))
            for check in checks:
                require(isinstance(check, DoctorCheck), "a check is no DoctorCheck", got=repr(check))
                require(check.status in ("ok", "note", "problem"), "a check has an unknown status", got=check.status)
                for name in ("name", "detail"):
                    text = getattr(check, name)
                    one_line = isinstance(text, str) and text.strip() and "\n" not in text
                    require(one_line, f"{name} of a check is not a line of text", got=repr(text), check=check.name)
                told = check.status != "problem" or check.reason or check.remedy
                require(told, "a problem without reason and remedy", check=check.name)


@pytest.mark.level("core")
@pytest.mark.parametrize("reason", REASONS)
def test_shutdown_raises_nothing(subject: Any, reason: str) -> None:
    """What it raises is only logged by the core, so it is judged here: each in a fresh manager, and twice."""
    manager = PluginManager.from_config(settings(**{"plugins.enable": [subject.name]}))
    record = manager.require("extension", subject.name)
    found = caller(manager, type("Found", (), {"record": record}), "deepinfer_shutdown")
    for _ in range(2):
        try:
            found(reason=reason)
        except BaseException as error:
            fail("deepinfer_shutdown raised", reason=reason, got=repr(error))
