"""The command: exit statuses, whole outputs, and what must not be imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import click
import pytest

from deepinfer_core import cli
from deepinfer_core.cli import root as root_module

TRAP = "import pathlib\npathlib.Path(__file__).with_name('imported').write_text('yes')\n"


@pytest.fixture
def alone(site, monkeypatch):
    """Only the distributions of ``site`` are installed, and no variable of ours is set."""
    from deepinfer_core.plugins import discovery

    for name in [name for name in os.environ if name.startswith("DEEPINFER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(discovery, "installed_entry_points", lambda: tuple(site.entries()))
    return site


@pytest.fixture
def failing(monkeypatch):
    """Make ``deepinfer fail`` raise what a test wants."""

    def install(raised):
        def body():
            raise raised

        module = type(sys)("failing_command")
        module.fail = click.command("fail")(body)
        monkeypatch.setitem(sys.modules, "failing_command", module)
        monkeypatch.setitem(root_module.COMMANDS, "fail", ("failing_command:fail", "Fail."))

    return install


def test_plugins_prints_the_table_and_its_summary(alone, sources, capsys):
    alone.add("toy", sources["backend"], version="1.2")
    alone.add("oldnpu", dist="oldnpu", version="0.3", api=">=0.4,<1")
    assert cli.main(["plugins"]) == 0
    captured = capsys.readouterr()
    assert captured.out == (
        "KIND     NAME    DISTRIBUTION  STATE         DETAIL                            LOCATION\n"
        "backend  oldnpu  oldnpu 0.3    incompatible  needs API >=0.4,<1; core has 1.0  site-packages/oldnpu\n"
        "backend  toy     acme-toy 1.2  found         toy                               site-packages/acme_toy\n"
        "2 plugins, 1 unusable (run: deepinfer doctor oldnpu). Nothing was imported.\n"
    )
    assert captured.err == ""


def test_plugins_as_json_has_the_same_fields_on_one_line(alone, sources, capsys):
    home = alone.add("toy", sources["backend"])
    assert cli.main(["--json", "plugins"]) == 0
    first = capsys.readouterr().out
    assert cli.main(["plugins", "--json"]) == 0
    assert capsys.readouterr().out == first
    data = json.loads(first)
    assert first.count("\n") == 1
    assert data["unusable"] == 0
    [plugin] = data["plugins"]
    wanted = {"kind": "backend", "name": "toy", "distribution": "acme-toy", "version": "1.0", "state": "found"}
    assert wanted.items() <= plugin.items()
    assert (plugin["detail"], plugin["location"]) == ("toy", str(home))


def test_plugins_with_a_name_says_everything_about_it(alone, capsys):
    alone.add("toy", manifest="")
    assert cli.main(["plugins", "toy"]) == 0
    out = capsys.readouterr().out
    assert "state         invalid\n" in out
    assert "code          E_MANIFEST\n" in out


def test_plugins_with_a_name_tells_claims_by_architecture_where_there_are_any(alone, capsys):
    by_arch = 'arch = ["a1", "a2"]\nclaims_on = { a2 = ["kv:v41", "feature:graphs"], a1 = ["kv:v41"] }'
    alone.add("rich", table=by_arch)
    alone.add("plain")
    assert cli.main(["plugins", "rich"]) == 0
    assert "\nclaims_on     a1: kv:v41; a2: feature:graphs, kv:v41\n" in capsys.readouterr().out
    assert cli.main(["plugins", "plain"]) == 0
    assert "claims_on" not in capsys.readouterr().out


def test_plugins_with_an_unknown_name_lists_the_installed_ones(alone, capsys):
    alone.add("toy")
    assert cli.main(["plugins", "tou"]) == 3
    assert capsys.readouterr().err == (
        "deepinfer: E_PLUGIN_MISSING: no plugin named 'tou'; did you mean 'toy'?\n"
        "  reason: installed plugins: toy\n"
        "  remedy: run: deepinfer plugins\n"
    )


def test_plugins_with_no_plugin_before_and_after_the_command_disables_both(alone, capsys):
    alone.add("aa")
    alone.add("bb")
    assert cli.main(["--no-plugin", "aa", "plugins", "--no-plugin", "bb", "--json"]) == 0
    states = {item["name"]: item["state"] for item in json.loads(capsys.readouterr().out)["plugins"]}
    assert states == {"aa": "disabled", "bb": "disabled"}


def test_plugins_with_prefer_settles_a_conflict(alone, capsys):
    alone.add("toy", dist="one")
    alone.add("toy", dist="two")
    assert cli.main(["plugins", "--json", "--prefer", "backend:toy=two"]) == 0
    states = {item["distribution"]: item["state"] for item in json.loads(capsys.readouterr().out)["plugins"]}
    assert states == {"one": "shadowed", "two": "found"}


def test_plugins_warns_of_an_unknown_variable_on_stderr(alone, capsys, monkeypatch):
    monkeypatch.setenv("DEEPINFER_BACKENDS", "x")
    assert cli.main(["plugins"]) == 0
    assert capsys.readouterr().err == (
        "deepinfer: W_ENV: DEEPINFER_BACKENDS is not a setting, and is ignored; did you mean DEEPINFER_BACKEND?\n"
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["--bakend", "cpu", "plugins"],
            (
                "deepinfer: E_USAGE: no option '--bakend'; did you mean '--backend'?\n"
                "  reason: deepinfer has no such option\n"
                "  remedy: run: deepinfer --help\n"
            ),
        ),
        (
            ["plugins", "--jsn"],
            (
                "deepinfer: E_USAGE: no option '--jsn'; did you mean '--json'?\n"
                "  reason: deepinfer plugins has no such option\n"
                "  remedy: run: deepinfer plugins --help\n"
            ),
        ),
        (
            ["--no-overlap", "generate", "x"],
            (
                "deepinfer: E_USAGE: no option '--no-overlap'\n"
                "  reason: deepinfer has no such option; deepinfer chat, deepinfer doctor, deepinfer generate and "
                "deepinfer replay have\n"
                "  remedy: run: deepinfer chat --no-overlap ... or deepinfer doctor --no-overlap ... or "
                "deepinfer generate --no-overlap ... or deepinfer replay --no-overlap ...\n"
            ),
        ),
        (
            ["plugins", "--out", "x", "lock"],
            (
                "deepinfer: E_USAGE: no option '--out'\n"
                "  reason: it belongs behind the command: lock\n"
                "  remedy: run: deepinfer plugins lock --out ...\n"
            ),
        ),
        (
            ["generate", "--sync-guard", "x"],
            (
                "deepinfer: E_USAGE: no option '--sync-guard'\n"
                "  reason: sync_guard is a setting without a flag\n"
                "  remedy: set DEEPINFER_SYNC_GUARD, or sync_guard in a file given to --config\n"
            ),
        ),
        (
            ["plugin"],
            (
                "deepinfer: E_USAGE: no command named 'plugin'; did you mean 'plugins'?\n"
                "  reason: commands: audit, chat, doctor, generate, new-plugin, plugins, replay\n"
                "  remedy: run: deepinfer --help\n"
            ),
        ),
        (
            ["plugins", "--config"],
            (
                "deepinfer: E_USAGE: option '--config' requires an argument\n"
                "  reason: raised while reading: deepinfer plugins\n"
                "  remedy: run: deepinfer plugins --help\n"
            ),
        ),
    ],
)
def test_usage_errors_have_our_format_and_status_2(alone, capsys, arguments, text):
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", text)


def test_errors_with_json_are_one_json_line_on_stderr(alone, capsys):
    assert cli.main(["--json", "plugins", "nope"]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert json.loads(captured.err)["error"]["code"] == "E_PLUGIN_MISSING"


@pytest.mark.parametrize(
    ("arguments", "is_json"),
    [
        (["--json", "--nope", "generate", "x"], True),
        (["--nope", "--json"], True),
        (["generate", "--nope", "--json", "x"], True),
        (["generat", "--json"], True),
        (["generate", "x", "--max-tokens", "many", "--json"], True),
        (["generate", "--nope", "--", "--json"], False),
        (["generate", "--stop", "--json", "--nope"], False),
    ],
)
def test_errors_of_reading_the_options_are_json_too(capsys, arguments, is_json):
    assert cli.main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("{") is is_json
    if is_json:
        assert json.loads(err)["error"]["code"] == "E_USAGE"


@pytest.mark.parametrize("arguments", ["--version", "--help", "plugins"])
@pytest.mark.parametrize(("redirection", "status"), [(">&-", 0), (">/dev/full", 74), ("2>&-", 0), ("<&- >&- 2>&-", 0)])
def test_closed_and_full_standard_streams(site, arguments, redirection, status):
    command = f"{sys.executable} -m deepinfer_core.cli {arguments} {redirection}"
    environment = os.environ | {"PYTHONPATH": str(site.folder)}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == status
    assert done.stderr.startswith("deepinfer: E_OUTPUT: cannot write standard output\n" if status else "")
    assert len(done.stderr.splitlines()) == (3 if status else 0)


def test_version_prints_the_versions(capsys):
    assert cli.main(["--version"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["core", "api", "native", "contracts", "python"]
    assert lines[1] == "api 1.0"


def test_help_lists_the_commands_without_importing_them(capsys):
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "  generate    Generate text for prompts.\n" in out
    assert "  plugins     List, check and pin plugins; import none.\n" in out


def test_unexpected_exception_is_one_line_and_status_70(failing, capsys):
    failing(ZeroDivisionError("division by zero"))
    assert cli.main(["fail"]) == 70
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "deepinfer: E_INTERNAL: ZeroDivisionError: division by zero"
    assert lines[1].startswith("  reason: raised at ")
    assert lines[2] == "  remedy: use --debug for the traceback, and report it"
    assert len(lines) == 3


def test_unexpected_exception_with_debug_has_the_traceback(failing, capsys):
    failing(ZeroDivisionError("division by zero"))
    assert cli.main(["--debug", "fail"]) == 70
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_keyboard_interrupt_is_status_130(failing, capsys):
    failing(KeyboardInterrupt())
    assert cli.main(["fail"]) == 130
    assert capsys.readouterr().err == "deepinfer: interrupted\n"


def test_command_status_is_passed_on(failing, monkeypatch):
    module = type(sys)("failing_command")
    module.fail = click.command("fail")(lambda: 5)
    monkeypatch.setitem(sys.modules, "failing_command", module)
    monkeypatch.setitem(root_module.COMMANDS, "fail", ("failing_command:fail", "Fail."))
    assert cli.main(["fail"]) == 5


def test_reader_that_leaves_early_sees_no_traceback(site):
    for name in ("aa", "bb"):
        site.add(name)
    command = f"{sys.executable} -m deepinfer_core.cli plugins | true; echo ${{PIPESTATUS[0]}}"
    environment = os.environ | {"PYTHONPATH": str(site.folder), "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, env=environment, check=False
    )
    assert done.stderr == ""
    assert done.stdout.strip() in ("0", "141")


@pytest.mark.parametrize("optimise", [False, True], ids=["plain", "optimised"])
def test_listing_imports_neither_plugins_nor_heavy_packages(site, optimise):
    home = site.add("toy", TRAP)
    report = (
        "import sys, atexit\n"
        "heavy = ('torch', 'numpy', 'deepinfer_native', 'safetensors', 'tokenizers', 'stevedore')\n"
        "atexit.register(lambda: sys.stderr.write(','.join(m for m in heavy if m in sys.modules)))\n"
    )
    (site.folder / "sitecustomize.py").write_text(report)
    for arguments in (["--help"], ["--version"], ["plugins"], ["plugins", "--json"]):
        done = site.run(*arguments, optimise=optimise)
        assert (done.returncode, done.stderr) == (0, ""), arguments
    assert "acme-toy 1.0" in site.run("plugins", optimise=optimise).stdout
    assert not (home / "imported").exists()


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, deepinfer_core; print([m for m in ('torch', 'numpy', 'attrs', 'pluggy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_broken_plugins_do_not_disturb_other_commands(site):
    site.add("broken", "raise SystemExit(9)\n")
    site.add("nodesc", manifest="")
    done = site.run("plugins")
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 unusable" not in done.stdout
    assert "invalid" in done.stdout
