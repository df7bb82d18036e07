"""Commands of plugins: who is asked, what a short name means, and what is imported."""

from __future__ import annotations

import json
import os

import pytest

from deepinfer_core import cli
from deepinfer_core.cli.root import COMMANDS

COMMAND = """
import click
from deepinfer_core import hookimpl
from deepinfer_core.commands import CommandState, common_options
from deepinfer_core.types import CommandSpec

@hookimpl
def deepinfer_cli_commands():
    return [CommandSpec("stock", __name__ + ":stock", "Count.")]

@click.command("stock")
@click.argument("what")
@common_options
@click.pass_obj
def stock(state, what):
    if what == "fail":
        raise ZeroDivisionError("no stock")
    print("stock of", what, state.json)
    return 5
"""
TRAP = "import pathlib\npathlib.Path(__file__).with_name('imported').write_text('yes')\n"
TABLE = 'commands = [{ name = "stock", summary = "Counts things." }]'


@pytest.fixture
def alone(site, monkeypatch):
    """Only the distributions of ``site`` are installed, and no variable of ours is set."""
    from deepinfer_core.plugins import discovery

    for name in [name for name in os.environ if name.startswith("DEEPINFER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(discovery, "installed_entry_points", lambda: tuple(site.entries()))
    return site


def add(site, source=COMMAND, *, kind="extension", name="shop", **more):
    return site.add(name, source, kind=kind, table=more.pop("table", TABLE), **more)


def test_command_of_an_enabled_extension_runs_by_its_short_name(alone, capsys):
    add(alone)
    assert cli.main(["--plugin", "shop", "stock", "apples", "--json"]) == 5
    assert capsys.readouterr().out == "stock of apples True\n"


@pytest.mark.parametrize("kind", ["extension", "sampler"])
def test_command_of_any_plugin_runs_by_its_long_name(alone, capsys, kind):
    source = COMMAND
    if kind == "sampler":
        source += "@hookimpl\ndef deepinfer_sampler_create(name): return None\n"
    add(alone, source, kind=kind)
    assert cli.main(["acme-shop.stock", "apples"]) == 5
    assert capsys.readouterr().out == "stock of apples False\n"


def test_command_of_an_allowed_plugin_runs_by_its_short_name(alone, capsys, monkeypatch):
    add(alone)
    monkeypatch.setenv("DEEPINFER_PLUGINS", "shop")
    assert cli.main(["stock", "apples"]) == 5


def test_command_of_a_first_party_distribution_needs_no_setting(alone, capsys):
    add(alone, dist="deepinfer-v41", name="shop")
    assert cli.main(["stock", "apples"]) == 5


def test_command_of_a_plugin_that_nobody_enabled_is_not_imported(alone, capsys):
    home = add(alone, TRAP + COMMAND)
    assert cli.main(["stock", "apples"]) == 2
    assert capsys.readouterr().err == (
        "deepinfer: E_USAGE: command 'stock' is of extension shop (acme-shop 1.0), which nobody enabled\n"
        "  reason: a plugin runs when it is named, and not because it is installed\n"
        "  remedy: run: deepinfer acme-shop.stock, or deepinfer --plugin shop stock\n"
    )
    assert not (home / "imported").exists()


def test_command_that_two_plugins_have_is_refused_and_the_long_names_work(alone, capsys):
    first, second = (add(alone, TRAP + COMMAND, name=name) for name in ("shop", "zoo"))
    options = ["--plugin", "shop", "--plugin", "zoo"]
    assert cli.main([*options, "stock", "apples"]) == 3
    assert capsys.readouterr().err == (
        "deepinfer: E_PLUGIN_CONFLICT: command 'stock' is provided by two plugins: extension shop (acme-shop 1.0), "
        "extension zoo (acme-zoo 1.0)\n"
        "  reason: its short name is off, because the order of installation does not decide\n"
        "  remedy: run: deepinfer acme-shop.stock, or deepinfer acme-zoo.stock\n"
    )
    assert not (first / "imported").exists()
    assert cli.main([*options, "acme-zoo.stock", "bears"]) == 5
    assert "stock of bears" in capsys.readouterr().out
    assert not (first / "imported").exists()
    assert (second / "imported").exists()


def test_command_with_a_name_of_the_core_never_takes_its_place(alone, capsys):
    home = add(alone, TRAP + COMMAND.replace('"stock"', '"plugins"'), table=TABLE.replace("stock", "plugins"))
    assert cli.main(["--plugin", "shop", "plugins", "--json"]) == 0
    [record] = json.loads(capsys.readouterr().out)["plugins"]
    assert record["commands"] == ["acme-shop.plugins"]
    assert not (home / "imported").exists()
    assert cli.main(["acme-shop.plugins", "apples"]) == 5


def test_unknown_command_names_those_of_plugins_and_the_nearest(alone, capsys):
    home = add(alone, TRAP + COMMAND)
    assert cli.main(["--plugin", "shop", "stok"]) == 2
    assert capsys.readouterr().err == (
        "deepinfer: E_USAGE: no command named 'stok'; did you mean 'stock'?\n"
        f"  reason: commands: {', '.join(sorted(COMMANDS))}; of plugins: stock\n"
        "  remedy: run: deepinfer --help\n"
    )
    assert not (home / "imported").exists()


def test_plugins_lists_the_commands_by_the_name_to_type(alone, capsys):
    add(alone)
    assert cli.main(["plugins"]) == 0
    assert capsys.readouterr().out.endswith(
        "command: deepinfer acme-shop.stock (shop): Counts things.\n1 plugin. Nothing was imported.\n"
    )
    assert cli.main(["plugins", "--plugin", "shop", "shop"]) == 0
    assert "commands      stock\n" in capsys.readouterr().out


def test_command_of_a_plugin_that_fails_tells_the_plugins_own_error(alone, capsys):
    add(alone, "import no_such_library\n")
    assert cli.main(["acme-shop.stock"]) == 3
    assert capsys.readouterr().err.startswith(
        "deepinfer: E_PLUGIN: extension shop (acme-shop 1.0) failed in import: ModuleNotFoundError: "
    )


def test_command_of_a_disabled_plugin_says_so(alone, capsys):
    add(alone)
    assert cli.main(["--no-plugin", "shop", "acme-shop.stock"]) == 3
    assert capsys.readouterr().err.splitlines()[0] == "deepinfer: E_PLUGIN: extension shop (acme-shop 1.0) is disabled"


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (
            "[]",
            (
                "E_HOOK_RETURN: deepinfer_cli_commands of shop gives other commands than its manifest declares\n"
                "  reason: given: none; declared: stock\n"
            ),
        ),
        (
            "{'stock': 1}",
            (
                "E_HOOK_RETURN: deepinfer_cli_commands of shop returned dict, expected a sequence of CommandSpec\n"
                "  reason: extension shop (acme-shop 1.0) does not follow plugin API 1.0\n"
            ),
        ),
        (
            "[CommandSpec('stock', 'json:dumps', 'x')]",
            (
                "E_PLUGIN: json:dumps of extension shop (acme-shop 1.0) is a function, expected a click command\n"
                "  reason: deepinfer_cli_commands names it for command 'stock'\n"
            ),
        ),
        (
            "[CommandSpec('stock', 'no_such_module:x', 'x')]",
            (
                "E_PLUGIN: extension shop (acme-shop 1.0) failed in the import of command stock: "
                "ModuleNotFoundError: No module named 'no_such_module'\n"
            ),
        ),
    ],
)
def test_command_hook_that_gives_something_else_is_refused(alone, capsys, returned, text):
    add(alone, COMMAND.replace('[CommandSpec("stock", __name__ + ":stock", "Count.")]', returned))
    assert cli.main(["--plugin", "shop", "stock", "x"]) == 3
    assert capsys.readouterr().err.startswith("deepinfer: " + text)


def test_command_that_raises_blames_its_plugin(alone, capsys):
    add(alone)
    assert cli.main(["acme-shop.stock", "fail"]) == 3
    error = capsys.readouterr().err
    assert error.startswith(
        "deepinfer: E_PLUGIN: extension shop (acme-shop 1.0) failed in its command: ZeroDivisionError: no stock\n"
        "  reason: raised at acme_shop/plugin.py:"
    )


def test_help_names_no_command_of_a_plugin_and_discovers_nothing(alone, capsys, monkeypatch):
    from deepinfer_core.plugins import discovery

    def refuse():
        raise AssertionError("--help reads the metadata of the environment")

    add(alone)
    monkeypatch.setattr(discovery, "installed_entry_points", refuse)
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "stock" not in out
    assert out.endswith("Plugins may bring more: deepinfer plugins lists them.\n")
