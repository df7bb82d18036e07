"""What a person can switch: tracing of hooks, strict mode, extensions; and what is read and logged once."""

from __future__ import annotations

import ast
import json
import logging
import os
from pathlib import Path

import pytest

from deepinfer_core import cli
from deepinfer_core.assembly.assemble import assemble
from deepinfer_core.doctor.diagnose import Scope, diagnose
from deepinfer_core.doctor.settings_checks import resolve
from deepinfer_core.doctor.text import as_text
from deepinfer_core.errors import ApiVersionError, BackendUnavailable, PluginError, PluginMissing
from deepinfer_core.plugins import discovery
from deepinfer_core.plugins.hooks import Hooks
from deepinfer_core.plugins.selection import select_backend
from deepinfer_core.types import Requirements

ROOT = Path(__file__).parents[3]
EXTENSION = """
from deepinfer_core import hookimpl
from deepinfer_core.types import DoctorCheck, SchedulerHints

@hookimpl
def deepinfer_scheduler_hints(match, backend): return SchedulerHints(backtrack=7)

@hookimpl
def deepinfer_doctor_checks(host): return [DoctorCheck("spring", "ok", "wound")]
"""
FAILS = """
from deepinfer_core import hookimpl
@hookimpl
def deepinfer_{hook}: raise ValueError("no")
"""


@pytest.fixture
def alone(site, monkeypatch):
    """Only the distributions of ``site`` are installed, and no variable of ours is set."""
    for name in [name for name in os.environ if name.startswith("DEEPINFER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(discovery, "installed_entry_points", lambda: tuple(site.entries()))
    return site


# --- tracing --------------------------------------------------------------------------------------------------------


def test_trace_names_hook_plugin_and_type_of_every_call(site, sources, checkpoint_of, capsys):
    site.add("toy", sources["backend"])
    site.add("tiny", sources["model"](), kind="model", table='architectures = ["TinyLM"]')
    site.add("clock", EXTENSION, kind="extension")
    manager = site.manager(
        trace_hooks=True, backend="toy", model=str(checkpoint_of("TinyLM")), plugins__enable=("clock",)
    )
    assemble(manager.config, manager=manager, announce=None).close()
    tiny, toy, clock = "model tiny (acme-tiny 1.0)", "backend toy (acme-toy 1.0)", "extension clock (acme-clock 1.0)"
    assert sorted(capsys.readouterr().err.splitlines()) == sorted(
        [
            f"hook deepinfer_model_match of {tiny} returned list of ModelMatch",
            f"hook deepinfer_backend_create of {toy} returned Toy",
            f"hook deepinfer_cache_specs of {tiny} returned list of CacheSpec",
            f"hook deepinfer_scheduler_hints of {tiny} returned list of SchedulerHints",
            f"hook deepinfer_scheduler_hints of {clock} returned list of SchedulerHints",
            f"hook deepinfer_model_create of {tiny} returned TinyLM",
        ]
    )


def test_trace_tells_what_a_hook_raised(site, capsys):
    site.add("toy", FAILS.format(hook="backend_create()"))
    manager = site.manager(trace_hooks=True)
    with pytest.raises(PluginError):
        Hooks(manager).backend_create(manager.require("backend", "toy"), None, manager.config)
    assert capsys.readouterr().err == "hook deepinfer_backend_create of backend toy (acme-toy 1.0) raised ValueError\n"


def test_trace_reaches_probes_and_doctor_checks_in_their_children(alone, sources, capsys):
    alone.add("toy", sources["backend"] + sources["probe"]() + EXTENSION)
    report = diagnose(resolve({}, None), Scope("toy"), {}, entries=alone.entries())
    assert [finding.detail for finding in report.problems()] == []
    assert capsys.readouterr().err == ""
    resolved = resolve({"trace_hooks": True}, None)
    report = diagnose(resolved, Scope("toy"), {}, entries=alone.entries())
    assert report.exit_status == 0
    toy = "backend toy (acme-toy 1.0)"
    assert capsys.readouterr().err.splitlines() == [
        f"hook deepinfer_backend_probe of {toy} returned ProbeReport",
        f"hook deepinfer_doctor_checks of {toy} returned list of list of DoctorCheck",
    ]


def test_trace_of_a_probe_does_not_stand_for_what_a_crashing_driver_printed(site, sources, capsys):
    source = sources["backend"] + "import os, sys\n@hookimpl\ndef deepinfer_backend_probe(name):\n"
    source += "    sys.stderr.write('libtoy: fatal\\n'); sys.stderr.flush(); os._exit(3)\n"
    site.add("toy", source)
    manager = site.manager(trace_hooks=True)
    with pytest.raises(BackendUnavailable, match="libtoy: fatal"):
        select_backend(manager, Requirements())
    assert "\x1f" not in capsys.readouterr().err


def test_listing_and_doctor_show_the_records_that_compiled_code_reads(alone, sources, capsys):
    from deepinfer_core.records import CONTRACTS

    text = f"SchedulerOutputs 3 {CONTRACTS['SchedulerOutputs'].chain[3]:016x}"
    manifest = f'schema = 1\napi = ">=1.0,<2"\n[contracts.SchedulerOutputs]\nfields = 3\nchain = "{text[-16:]}"\n'
    alone.add("toy", sources["backend"], manifest=manifest + '[[backend]]\nname = "toy"\nsummary = "A toy"\n')
    assert cli.main(["plugins", "toy"]) == 0
    assert f"contracts     {text}\n" in capsys.readouterr().out
    report = diagnose(resolve({}, None), Scope("toy"), {}, entries=alone.entries())
    assert report.findings[0].lines == [f"contract {text}"]
    assert as_text(report).splitlines()[2].strip() == f"contract {text}"


# --- strict mode ----------------------------------------------------------------------------------------------------


def test_strict_raises_the_error_of_a_plugin_that_cannot_be_used(site):
    site.add("old", api=">=0.1,<1")
    assert site.manager().registry.find("backend", "old").state == "incompatible"
    with pytest.raises(ApiVersionError):
        site.manager(strict_plugins=True)


def test_strict_raises_the_failure_of_a_probe(site):
    site.add("toy", "raise OSError('libtoy.so: cannot open')\n")
    site.add("cpu", dist="deepinfer-cpu")
    with pytest.raises(PluginError, match=r"plugin failed in import: OSError: libtoy\.so: cannot open"):
        select_backend(site.manager(strict_plugins=True), Requirements())


def test_strict_leaves_listing_and_doctor_as_they_are(alone, capsys, monkeypatch):
    alone.add("old", api=">=0.1,<1")
    monkeypatch.setenv("DEEPINFER_STRICT_PLUGINS", "1")
    assert cli.main(["plugins", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unusable"] == 1
    assert cli.main(["doctor", "old"]) == 1


# --- extensions and names -------------------------------------------------------------------------------------------


def test_extension_that_is_misspelt_is_told_with_the_nearest(site, checkpoint_of, sources):
    site.add("toy", sources["backend"])
    site.add("tiny", sources["model"](), kind="model", table='architectures = ["TinyLM"]')
    site.add("clock", EXTENSION, kind="extension")
    manager = site.manager(backend="toy", model=str(checkpoint_of("TinyLM")), plugins__enable=("clok",))
    with pytest.raises(PluginMissing) as caught:
        assemble(manager.config, manager=manager, announce=None)
    assert str(caught.value) == (
        "E_PLUGIN_MISSING: no extension named 'clok'; did you mean 'clock'?\n"
        "  reason: installed extensions: clock\n"
        "  remedy: choose one of these, or pip install the plugin that provides 'clok'"
    )


def test_plugin_option_with_a_backend_says_what_it_is(site):
    site.add("toy")
    error = site.registry().missing("extension", "toy")
    assert str(error) == (
        "E_PLUGIN_MISSING: no extension named 'toy'\n"
        "  reason: installed extensions: none; toy is a backend\n"
        "  remedy: choose one of these, or pip install the plugin that provides 'toy'"
    )


def test_plugins_command_warns_of_an_extension_that_is_not_there(alone, capsys):
    alone.add("clock", EXTENSION, kind="extension")
    assert cli.main(["plugins", "--plugin", "clok"]) == 0
    assert capsys.readouterr().err == (
        "deepinfer: W_PLUGIN: plugins.enable (--plugin) names 'clok', which is no installed extension; did you mean "
        "'clock'?\n"
    )


# --- read once, logged once -----------------------------------------------------------------------------------------


def test_loading_logs_the_distribution_and_the_file_of_each_plugin(site, sources, caplog):
    home = site.add("toy", sources["backend"])
    caplog.set_level(logging.INFO, "deepinfer.plugins")
    site.manager().require("backend", "toy")
    assert caplog.messages == [f"loaded backend toy (acme-toy 1.0) from {home / 'plugin.py'}"]


def test_generate_reads_the_entry_points_of_the_environment_once(monkeypatch, capsysbinary):
    pytest.importorskip("torch", reason="the shipped model runs on torch")
    from importlib import metadata

    calls = []
    whole = metadata.entry_points

    def counted(**selection):
        calls.append(selection)
        return whole(**selection)

    monkeypatch.setattr(metadata, "entry_points", counted)
    for kept in (discovery.installed_entry_points, discovery.scanned_entry_points, discovery.unread_distributions):
        kept.cache_clear()
    assert cli.main(["generate", "--backend", "cpu", "--max-tokens", "2", "Once upon a time"]) == 0
    assert calls == [{}]


def test_no_source_scans_entry_points_by_group():
    """``entry_points(group=...)`` reads the whole environment for each group (``spec/plugins.md`` 3)."""
    found = []
    for path in sorted([*ROOT.glob("*/src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")]):
        text = path.read_text("utf-8")
        nodes = ast.walk(ast.parse(text, filename=str(path))) if "entry_points(" in text else ()
        for node in nodes:
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func).rpartition(".")[2]
            if name == "entry_points" and (node.args or node.keywords):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []
