"""Commands that the plugin adds to the command line (``deepinfer_cli_commands``)."""

from __future__ import annotations

import pytest

from deepinfer_core.conformance.failures import fail, require, require_equal
from deepinfer_core.conformance.part import not_offered, settings
from deepinfer_core.conformance.subject import Subject
from deepinfer_core.errors import DeepInferError
from deepinfer_core.plugins.commands import load_command, plugin_commands
from deepinfer_core.plugins.manager import PluginManager


@pytest.mark.level("smoke")
@pytest.mark.hook("deepinfer_cli_commands")
def test_commands_of_the_manifest_are_commands(manager: PluginManager, subject: Subject) -> None:
    """Each name resolves to a command of click, which has a help text and shows it."""
    from click.testing import CliRunner

    mine = [c for c in plugin_commands([subject.record], settings().plugins, []) if c.owner is subject.record]
    if not mine:
        not_offered("deepinfer_cli_commands (its manifest declares no commands)")
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
