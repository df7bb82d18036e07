"""``PluginLock``: what it pins, what it refuses before an import, and what child processes and ranks compare."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import attrs
import pytest
from dp_ranks import Rank, ThreadReducer, run_ranks

from deepinfer_core import cli
from deepinfer_core.config import EngineConfig
from deepinfer_core.doctor import child_tasks
from deepinfer_core.errors import PluginLockError
from deepinfer_core.plugins import discovery
from deepinfer_core.plugins.agreement import agree_on_plugins
from deepinfer_core.plugins.lock import LockedPlugin, PluginLock, as_data, check_installed, differs
from deepinfer_core.plugins.probe import probe_all
from deepinfer_core.step_choice import GroupChooser

TRAP = "import pathlib\npathlib.Path(__file__).with_name('imported').write_text('yes')\n"
PLAIN = LockedPlugin("backend", "cpu", "deepinfer-cpu", "1.0", "deepinfer_cpu.plugin", "ab" * 32, ">=1.0,<2", {})


@pytest.fixture
def alone(site, monkeypatch):
    """Only the distributions of ``site`` are installed, and no variable of ours is set."""
    for name in [name for name in os.environ if name.startswith("DEEPINFER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(discovery, "installed_entry_points", lambda: tuple(site.entries()))
    return site


@pytest.fixture
def locked(alone, tmp_path, capsys):
    """A site with one backend, its module a trap, and the file that locks it."""
    alone.home = alone.add("toy", TRAP)
    alone.lock = tmp_path / "plugins.lock"
    assert cli.main(["plugins", "lock", "--out", str(alone.lock)]) == 0
    assert capsys.readouterr() == ("", "")
    return alone


def change(site, **fields) -> None:
    data = json.loads(site.lock.read_text())
    data["plugins"][0].update(fields)
    site.lock.write_text(json.dumps(data))


def states(capsys, *arguments: str) -> dict[str, str]:
    assert cli.main(["plugins", "--json", *arguments]) == 0
    return {item["distribution"]: item["state"] for item in json.loads(capsys.readouterr().out)["plugins"]}


def test_lock_command_writes_the_same_text_to_stdout_and_to_a_file(locked, capsys):
    assert cli.main(["plugins", "lock"]) == 0
    text = capsys.readouterr().out
    assert text == locked.lock.read_text()
    data = json.loads(text)
    [plugin] = data["plugins"]
    assert (data["schema"], plugin["version"], plugin["entry"]) == (1, "1.0", "acme_toy.plugin")
    assert len(plugin["manifest"]) == 64
    assert not (locked.home / "imported").exists()


def test_lock_command_leaves_out_what_cannot_be_used_and_says_so(alone, capsys):
    alone.add("toy")
    alone.add("old", api=">=0.1,<1")
    assert cli.main(["plugins", "lock"]) == 0
    captured = capsys.readouterr()
    assert [item["name"] for item in json.loads(captured.out)["plugins"]] == ["toy"]
    assert captured.err == "deepinfer: not locked, because they cannot be used: old (acme-old 1.0)\n"


def test_lock_command_with_names_locks_these_alone_and_refuses_a_broken_one(alone, capsys):
    for name in ("aa", "bb"):
        alone.add(name)
    alone.add("old", api=">=0.1,<1")
    assert cli.main(["plugins", "lock", "bb"]) == 0
    assert [item["name"] for item in json.loads(capsys.readouterr().out)["plugins"]] == ["bb"]
    assert cli.main(["plugins", "lock", "old"]) == 3
    assert capsys.readouterr().err.startswith("deepinfer: E_API: ")


def test_lock_command_that_cannot_write_leaves_the_old_file(alone, tmp_path, capsys):
    alone.add("toy")
    assert cli.main(["plugins", "lock", "--out", str(tmp_path / "absent" / "x.lock")]) == 74
    assert capsys.readouterr().err == (
        f"deepinfer: E_OUTPUT: cannot write {tmp_path}/absent/x.lock\n"
        "  reason: No such file or directory\n"
        "  remedy: give --out a file in a folder that exists\n"
    )


def test_lock_command_on_a_full_device_says_to_make_room(alone, tmp_path, capsys, monkeypatch):
    def full(path, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    alone.add("toy")
    monkeypatch.setattr("deepinfer_core.cli.plugins_lock.write_whole", full)
    assert cli.main(["plugins", "lock", "--out", str(tmp_path / "x.lock")]) == 74
    assert capsys.readouterr().err == (
        f"deepinfer: E_OUTPUT: cannot write {tmp_path}/x.lock\n"
        "  reason: No space left on device\n"
        "  remedy: make room there, or write elsewhere\n"
    )


def test_locked_plugin_whose_manifest_broke_is_told_so(locked, capsys):
    pinned = json.loads(locked.lock.read_text())["plugins"][0]["manifest"]
    with (locked.home / "deepinfer.toml").open("a") as manifest:
        manifest.write("bogus = 1\n")
    with pytest.raises(PluginLockError) as caught:
        locked.manager(plugins__lock=str(locked.lock))
    assert caught.value.what == (
        "backend toy is not as locked: manifest is unusable (deepinfer.toml: backend 'toy': unknown key 'bogus'), "
        f"locked is {pinned}"
    )


def test_lock_of_an_editable_plugin_that_differs_does_not_ask_an_index_for_it():
    error = differs(PLAIN, ("version", "1.0", "1.1"), "plugins.lock", in_place=True)
    assert error.remedy == "put its source tree back, or lock what is installed: deepinfer plugins lock --out FILE"


def test_plugins_as_locked_can_be_used(locked, capsys):
    assert states(capsys, "--plugin-lock", str(locked.lock)) == {"acme-toy": "found"}
    config = EngineConfig.resolve({"plugins.lock": str(locked.lock)}, environ={})
    assert locked.manager(plugins__lock=config.plugins.lock).registry.lock_problems == ()


@pytest.mark.parametrize(
    ("field", "value", "here"),
    [
        ("distribution", "acme-other", "acme-toy"),
        ("version", "0.9", "1.0"),
        ("entry", "acme_toy.other", "acme_toy.plugin"),
        ("manifest", "ab" * 32, None),
        ("api", ">=1.0,<3", ">=1.0,<2"),
        ("contracts", {"SchedulerOutputs": "3:9f31c05be2a4d7f0"}, "none"),
    ],
)
def test_plugin_that_differs_in_a_field_is_refused_before_its_import(locked, capsys, field, value, here):
    change(locked, **{field: value})
    here = here or locked.registry().records[0].manifest.sha256
    shown = "SchedulerOutputs 3:9f31c05be2a4d7f0" if field == "contracts" else value
    with pytest.raises(PluginLockError) as caught:
        locked.manager(plugins__lock=str(locked.lock))
    assert caught.value.what == f"backend toy is not as locked: {field} is {here}, locked is {shown}"
    assert caught.value.details["field"] == field
    assert not (locked.home / "imported").exists()
    assert states(capsys, "--plugin-lock", str(locked.lock)) == {"acme-toy": "incompatible"}


def test_lock_of_another_version_says_what_to_install(locked, capsys):
    change(locked, version="0.9")
    assert cli.main(["--plugin-lock", str(locked.lock), "generate", "--backend", "toy", "x"]) == 3
    assert capsys.readouterr().err == (
        "deepinfer: E_PLUGIN_LOCK: backend toy is not as locked: version is 1.0, locked is 0.9\n"
        f"  reason: {locked.lock} has acme-toy 0.9\n"
        "  remedy: pip install --force-reinstall acme-toy==0.9, or lock what is installed: deepinfer plugins "
        "lock --out FILE\n"
    )
    assert not (locked.home / "imported").exists()


def test_locked_plugin_that_is_gone_is_an_error_and_all_differences_are_told(locked):
    data = json.loads(locked.lock.read_text())
    data["plugins"] += [{**data["plugins"][0], "name": "gone", "distribution": "acme-gone"}]
    data["plugins"][0]["version"] = "0.9"
    locked.lock.write_text(json.dumps(data))
    with pytest.raises(PluginLockError) as caught:
        locked.manager(plugins__lock=str(locked.lock))
    assert caught.value.what == (
        "backend toy is not as locked: version is 1.0, locked is 0.9; backend gone is locked, and not installed"
    )


def test_plugin_that_came_after_the_lock_stays_off_and_disturbs_nothing(locked, capsys):
    locked.add("late")
    locked.add("toy", dist="rival-toy")
    assert states(capsys, "--plugin-lock", str(locked.lock)) == {
        "acme-late": "disabled",
        "acme-toy": "found",
        "rival-toy": "disabled",
    }
    assert cli.main(["plugins", "late", "--plugin-lock", str(locked.lock)]) == 0
    assert "error         backend late (acme-late 1.0) is disabled\n" in capsys.readouterr().out


def test_setting_in_a_file_is_relative_to_the_file_and_has_a_variable(locked, tmp_path, monkeypatch, capsys):
    (tmp_path / "settings.toml").write_text('[plugins]\nlock = "plugins.lock"\n')
    change(locked, version="0.9")
    assert states(capsys, "--config", str(tmp_path / "settings.toml")) == {"acme-toy": "incompatible"}
    monkeypatch.setenv("DEEPINFER_PLUGINS_LOCK", str(locked.lock))
    assert states(capsys) == {"acme-toy": "incompatible"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No such file or directory"),
        ("{", "it is no plugin lock: JSONDecodeError: Expecting property name enclosed in double quotes"),
        ('{"schema": 2}', "its schema is 2, this release reads 1"),
        ('{"schema": 1}', "it is no plugin lock: KeyError: 'plugins'"),
        (
            '{"schema": 1, "plugins": [{"kind": "backend"}]}',
            "it is no plugin lock: ValueError: a plugin has the",
        ),
        ("x" * ((1 << 20) + 1), "it is larger than 1048576 bytes"),
    ],
)
def test_file_that_is_no_lock_is_refused(alone, tmp_path, capsys, text, reason):
    path = tmp_path / "x.lock"
    if text is not None:
        path.write_text(text)
    assert cli.main(["plugins", "--plugin-lock", str(path)]) == 3
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"deepinfer: E_PLUGIN_LOCK: the plugin lock {path} cannot be used"
    assert lines[1].startswith(f"  reason: {reason}")
    assert lines[2] == f"  remedy: write it with: deepinfer plugins lock --out {path}"


@pytest.mark.usefixtures("alone")
def test_remedy_for_what_cannot_be_a_lock_names_no_such_file(tmp_path, capsys):
    for path in (tmp_path, Path("/dev/zero"), tmp_path / "none" / "x.lock"):
        assert cli.main(["plugins", "--plugin-lock", str(path)]) == 3
        assert capsys.readouterr().err.endswith("  remedy: write it with: deepinfer plugins lock --out FILE\n")


def test_doctor_reports_what_differs_and_goes_on(locked, capsys):
    change(locked, version="0.9")
    assert cli.main(["doctor", "toy", "--json", "--plugin-lock", str(locked.lock)]) == 1
    [check] = json.loads(capsys.readouterr().out)["checks"]
    assert (check["code"], check["detail"]) == (
        "E_PLUGIN_LOCK",
        "backend toy is not as locked: version is 1.0, locked is 0.9",
    )


def test_child_process_refuses_another_plugin_than_it_was_given(site, sources, monkeypatch):
    home = site.add("toy", TRAP + sources["backend"] + sources["probe"]())
    record = site.record("backend", "toy")
    given = as_data(LockedPlugin.of(record))
    monkeypatch.setattr(discovery, "installed_entry_points", lambda: ())  # kept from before the plugin was there
    check_installed(given)
    (home / "deepinfer.toml").write_text((home / "deepinfer.toml").read_text() + "\n# changed\n")
    answer = child_tasks.load_plugin("deepinfer.backends", given, False)
    assert answer["phase"] == "lock"
    assert answer["error"]["message"].startswith("backend toy is not as locked: manifest is ")
    [outcome] = probe_all([record])
    assert outcome.failure.startswith("the process of the probe found another plugin: backend toy is not as locked")
    assert outcome.plugin_failed
    assert not (home / "imported").exists()
    with pytest.raises(PluginLockError, match="backend toy is locked, and not installed"):
        check_installed({**given, "distribution": "acme-gone"})


def test_manager_locks_what_it_loaded_in_that_order(site, sources):
    for name in ("aa", "bb"):
        site.add(name, sources["backend"])
    manager = site.manager()
    for name in ("bb", "aa"):
        manager.require("backend", name)
    assert [plugin.key for plugin in manager.lock().plugins] == ["backend:bb", "backend:aa"]


def compare(locks: list[PluginLock]) -> list[str]:
    """What each rank of a group with these locks says; empty: it may start. A rank that hangs fails by GroupError."""

    def start(reducer: ThreadReducer) -> str:
        try:
            agree_on_plugins(reducer, locks[reducer.rank])
        except PluginLockError as exc:
            return exc.reason
        return ""

    return run_ranks(len(locks), start)


def test_ranks_with_the_same_plugins_start():
    assert compare([PluginLock((PLAIN,))] * 3) == ["", "", ""]


@pytest.mark.parametrize(
    ("field", "value"),
    [("version", "2.0"), ("distribution", "x" * 300), ("manifest", ""), ("entry", "ü")],
)
def test_ranks_that_differ_all_name_the_field_and_both_values(field, value):
    other = PluginLock((attrs.evolve(PLAIN, **{field: value}),))
    same = PluginLock((PLAIN,))
    said = compare([same, same, other])
    assert said == [f"backend cpu: {field} is {getattr(PLAIN, field)} at rank 0, and {value} at rank 2"] * 3


def test_ranks_that_load_other_plugins_all_list_them():
    said = compare([PluginLock((PLAIN,)), PluginLock(())])
    assert said == ["rank 0 loads backend:cpu; rank 1 loads none"] * 2


def test_lock_reads_what_it_wrote(tmp_path: Path):
    lock = PluginLock((PLAIN, attrs.evolve(PLAIN, name="b", contracts={"SchedulerOutputs": "3:9f31c05be2a4d7f0"})))
    path = tmp_path / "x.lock"
    path.write_text(lock.as_text())
    assert PluginLock.read(path).plugins == lock.plugins


def test_chooser_of_a_group_compares_the_plugins_before_the_first_step():
    other = PluginLock((attrs.evolve(PLAIN, version="2.0"),))

    def start(reducer: ThreadReducer) -> str:
        core = Rank(reducer, seed=1).core
        try:
            GroupChooser(reducer, core, lock=PluginLock((PLAIN,)) if reducer.rank else other)
        except PluginLockError as exc:
            return exc.what
        return "started"

    assert run_ranks(2, start) == ["the plugins of rank 1 are not those of rank 0"] * 2
