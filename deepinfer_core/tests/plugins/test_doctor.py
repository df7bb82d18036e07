"""``deepinfer doctor``: what a broken plugin does is a finding with its exact text, and the others are reported too."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from deepinfer_core import cli
from deepinfer_core.doctor.diagnose import Scope, diagnose
from deepinfer_core.doctor.plugin_checks import Limits, plugin_findings
from deepinfer_core.doctor.settings_checks import resolve
from deepinfer_core.doctor.text import as_text

CHECKS = """
from deepinfer_core.types import DoctorCheck
@hookimpl
def deepinfer_doctor_checks(host):
"""
GENEROUS = Limits(load=60.0, probe=60.0, checks=60.0)


@pytest.fixture
def alone(site, monkeypatch):
    """Only the distributions of ``site`` are installed, and no variable of ours is set."""
    from deepinfer_core.plugins import discovery

    for name in [name for name in os.environ if name.startswith("DEEPINFER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(discovery, "installed_entry_points", lambda: tuple(site.entries()))
    return site


def findings_of(site, *needed: str, limits: Limits = GENEROUS) -> dict[tuple[str, str], tuple[str, str, str, str]]:
    """(area, check) -> status, code and detail, reason, remedy."""
    found = plugin_findings(site.registry().records, frozenset(needed), limits)
    return {
        (f.area, f.check): (f.status, f"{f.code}: {f.detail}" if f.code else f.detail, f.reason, f.remedy)
        for f in found
    }


def test_plugins_that_break_are_reported_with_their_messages_and_the_others_too(alone, sources):
    head = "from deepinfer_core import hookimpl\nimport os, signal, sys\n"
    alone.add("crash", head + "os.kill(os.getpid(), signal.SIGSEGV)\n")
    alone.add("exits", head + "print('libtoy: fatal', file=sys.stderr, flush=True)\nos._exit(7)\n")
    alone.add("raises", head + "raise OSError('libtoy.so: cannot open')\n")
    alone.add("misspelt", sources["backend"] + "@hookimpl\ndef deepinfer_backend_prob(name): return None\n")
    alone.add("talks", "print('loading toy')\n" + sources["backend"])
    alone.add("old", api=">=0.4,<1")
    home = alone.add("good", sources["backend"])
    found = findings_of(alone)

    def of_process(name: str, text: str) -> tuple[str, str, str, str]:
        return (
            "problem",
            f"E_PLUGIN: backend {name} (acme-{name} 1.0): the import {text}",
            f"it ran acme_{name}.plugin in a process of its own",
            f"reinstall or update acme-{name}, or leave it out with --no-plugin {name}",
        )

    assert found["backend:crash", "import"] == of_process("crash", "crashed: signal 11")
    assert found["backend:exits", "import"] == of_process(
        "exits", "exited with status 7 and no result; it printed: libtoy: fatal"
    )
    assert found["backend:raises", "import"] == (
        "problem",
        "E_PLUGIN: backend raises (acme-raises 1.0) failed in import: OSError: libtoy.so: cannot open",
        "raised at acme_raises/plugin.py:3",
        "reinstall or update acme-raises, or leave it out with --no-plugin raises",
    )
    assert found["backend:misspelt", "import"][1] == (
        "E_PLUGIN: backend misspelt (acme-misspelt 1.0): unknown hook 'deepinfer_backend_prob'; "
        "did you mean 'deepinfer_backend_probe'?"
    )
    assert found["backend:talks", "output"] == (
        "note",
        "it writes to standard output when it is imported: loading toy",
        "standard output of a command is for its results alone",
        "ask the authors of acme-talks to leave that out",
    )
    assert found["backend:old", "plugin"][:2] == (
        "problem",
        "E_API: plugin old (acme-old 1.0) needs plugin API >=0.4,<1",
    )
    assert found["backend:good", "plugin"][:2] == ("ok", "acme-good 1.0, toy")
    assert found["backend:good", "hooks"][:2] == ("ok", "backend_create")
    assert found["backend:good", "file"][:2] == ("ok", str(home / "plugin.py"))


def test_plugin_that_hangs_at_import_is_ended_at_the_limit(alone):
    alone.add("hangs", "import time\ntime.sleep(600)\n")
    found = findings_of(alone, limits=Limits(load=1.5))
    text = "E_PLUGIN: backend hangs (acme-hangs 1.0): the import gave no answer within 1.5 s"
    assert found["backend:hangs", "import"][:2] == ("problem", text)


@pytest.mark.parametrize(
    ("body", "check", "expected"),
    [
        (
            "    return [DoctorCheck('driver', 'problem', 'driver 3 is too old', 'needs 4', 'install driver 4')]\n",
            "driver",
            ("problem", "driver 3 is too old", "needs 4", "install driver 4"),
        ),
        (
            "    raise RuntimeError('no bus')\n",
            "checks",
            (
                "problem",
                "E_PLUGIN: backend toy (acme-toy 1.0) failed in its doctor checks: RuntimeError: no bus",
                "raised at acme_toy/plugin.py:26",
                "reinstall or update acme-toy, or leave it out with --no-plugin toy",
            ),
        ),
        (
            "    return {'driver': 'ok'}\n",
            "checks",
            (
                "problem",
                "E_HOOK_RETURN: deepinfer_doctor_checks of toy returned dict, expected a sequence of DoctorCheck",
                "backend toy (acme-toy 1.0) does not follow plugin API 1.0",
                "ask the authors of acme-toy, or install another release of it",
            ),
        ),
        (
            "    import os\n    os._exit(0)\n",
            "checks",
            (
                "problem",
                "E_PLUGIN: backend toy (acme-toy 1.0): its doctor checks exited with status 0 and no result",
                "it ran acme_toy.plugin in a process of its own",
                "reinstall or update acme-toy, or leave it out with --no-plugin toy",
            ),
        ),
    ],
    ids=["problem", "raises", "dict", "exit"],
)
def test_checks_of_a_plugin_are_reported_whatever_they_do(alone, sources, body, check, expected):
    alone.add("toy", sources["backend"] + CHECKS + body)
    assert findings_of(alone)["backend:toy", check] == expected


def test_device_of_each_backend_is_told_with_reasons_and_remedies(alone, sources):
    probe, backend = sources["probe"], sources["backend"]
    alone.add("fits", backend + probe(devices=("toy1",)), table='arch = ["toy1"]')
    alone.add("absent", backend + probe(present=False, usable=False, reasons=("no /dev/toy",)))
    alone.add("broken", backend + probe(usable=False, reasons=("driver 3",), remedy="install driver 4"))
    alone.add("wrong", backend + probe(devices=("toy9",)), table='arch = ["toy1"]')
    killed = "\n@hookimpl\ndef deepinfer_backend_probe(name):\n    import os\n    os.kill(os.getpid(), 11)\n"
    alone.add("crashes", backend + killed)
    alone.add("elsewhere", backend, table='requires = { os = ["plan9"] }')
    found = findings_of(alone)
    assert found["backend:fits", "device"][:2] == ("ok", "toy1")
    assert found["backend:absent", "device"][:2] == ("note", "no /dev/toy")
    assert found["backend:broken", "device"] == (
        "problem",
        "E_BACKEND_UNAVAILABLE: no usable device",
        "driver 3",
        "install driver 4",
    )
    assert found["backend:crashes", "device"][:2] == (
        "problem",
        "E_BACKEND_UNAVAILABLE: the probe crashed: signal 11",
    )
    assert found["backend:wrong", "device"][1:3] == (
        "E_ARCH: no usable device",
        "found toy9; kernels exist for toy1",
    )
    assert found["backend:elsewhere", "plugin"][:2] == (
        "note",
        f"acme-elsewhere 1.0 cannot be used here: needs plan9, this is {sys.platform}",
    )


def test_module_that_a_source_folder_hides_is_noticed(alone, sources, tmp_path, monkeypatch):
    installed = alone.add("toy", sources["backend"])
    source = tmp_path / "checkout" / "acme_toy"
    source.mkdir(parents=True)
    for name in ("__init__.py", "plugin.py", "deepinfer.toml"):
        (source / name).write_text((installed / name).read_text())
    monkeypatch.syspath_prepend(str(source.parent))
    monkeypatch.chdir(source.parent)
    status, detail, reason, _ = findings_of(alone)["backend:toy", "file"]
    assert (status, detail, reason) == (
        "note",
        f"{source / 'plugin.py'} hides the installed acme-toy in {alone.folder}",
        f"the working directory {source.parent} comes first on the import path",
    )


def test_named_plugin_with_a_problem_gives_status_1_and_the_whole_text(alone, capsys):
    alone.add("toy", api=">=0.4,<1")
    assert cli.main(["doctor", "toy"]) == 1
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out == (
        "backend toy\n"
        "  PROBLEM  plugin  E_API: plugin toy (acme-toy 1.0) needs plugin API >=0.4,<1\n"
        "                   reason: this core provides 1.0\n"
        "                   remedy: pip install -U acme-toy deepinfer-core\n"
        "\n"
        "1 check, 0 notes, 1 problem, 1 of them in what was named or what every run needs.\n"
    )


def test_unknown_name_lists_the_installed_plugins_with_status_3(alone, capsys):
    alone.add("toy")
    assert cli.main(["doctor", "tou"]) == 3
    assert capsys.readouterr().err.startswith("deepinfer: E_PLUGIN_MISSING: no plugin named 'tou'; did you mean 'toy'?")


def test_whole_diagnosis_counts_only_what_a_run_needs(alone, sources):
    pytest.importorskip("torch", reason="the distributions of these names require torch")
    alone.add("cpu", sources["backend"] + sources["probe"](devices=("cpu",)), dist="deepinfer-cpu")
    source = "from deepinfer_core import hookimpl\n@hookimpl\ndef deepinfer_sampler_create(name): return None\n"
    alone.add("canonical", source, kind="sampler", dist="deepinfer-samplers")
    alone.add("old", api=">=0.4,<1")
    report = diagnose(resolve({}, None), Scope(), {}, limits=GENEROUS, entries=alone.entries())
    assert [f.area for f in report.problems()] == ["backend:old"]
    assert report.exit_status == 0
    areas = list(dict.fromkeys(f.area for f in report.findings))
    assert areas[0] == "core"
    assert {"settings", "backend:cpu", "backend:old", "sampler:canonical"} <= set(areas)
    native = next(f for f in report.findings if f.check == "native")
    assert native.data["library"].endswith(".so")
    assert "SchedulerOutputs: " in as_text(report)
    assert as_text(report).endswith("1 problem: none in what was named, nor in what every run needs.")
    auto = next(f for f in report.findings if (f.area, f.check) == ("settings", "backend"))
    assert (auto.status, auto.detail) == ("ok", "auto: usable here: cpu")


def test_needed_things_that_are_missing_give_status_1_and_misspelt_names_are_notes(alone, capsys, monkeypatch):
    monkeypatch.setenv("DEEPINFER_BACKENDS", "x")
    alone.add("toy", api=">=0.4,<1")
    assert cli.main(["doctor", "--json", "--no-plugin", "tyo"]) == 1
    captured = capsys.readouterr()
    assert captured.err == ""
    data = json.loads(captured.out)
    checks = {(item["area"], item["check"], item["status"]): item for item in data["checks"]}
    assert data["schema"] == 1
    assert (data["exit_status"], data["needed_problems"], data["problems"]) == (1, 2, 3)
    assert checks["sampler:canonical", "plugin", "problem"]["code"] == "E_PLUGIN_MISSING"
    assert checks["settings", "backend", "problem"]["detail"] == "auto: no installed backend can be used here"
    assert not checks["backend:toy", "plugin", "problem"]["needed"]
    notes = [item["detail"] for item in data["checks"] if (item["area"], item["status"]) == ("settings", "note")]
    assert notes == [
        "DEEPINFER_BACKENDS is not a setting, and is ignored; did you mean DEEPINFER_BACKEND?",
        "plugins.disable (--no-plugin) names 'tyo', which is no installed plugin; did you mean 'toy'?",
    ]


def test_bad_setting_of_the_environment_is_a_problem_and_the_rest_goes_on(alone, sources, capsys, monkeypatch):
    monkeypatch.setenv("DEEPINFER_MAX_NUM_SEQS", "many")
    alone.add("toy", sources["backend"])
    assert cli.main(["doctor", "toy"]) == 1
    out = capsys.readouterr().out
    assert "E_CONFIG: max_num_seqs" in out
    assert "acme-toy 1.0, toy" in out


def test_settings_have_their_values_and_origins(alone, sources, capsys, monkeypatch):
    monkeypatch.setenv("DEEPINFER_MAX_NUM_SEQS", "8")
    alone.add("toy", sources["backend"])
    assert cli.main(["doctor", "toy", "--json", "--settings", "--draft-tokens", "2"]) == 0
    settings = {item["key"]: item for item in json.loads(capsys.readouterr().out)["settings"]}
    assert (settings["max_num_seqs"]["value"], settings["max_num_seqs"]["origin"]) == (
        8,
        "environment DEEPINFER_MAX_NUM_SEQS",
    )
    assert (settings["draft_tokens"]["value"], settings["draft_tokens"]["origin"]) == (2, "flag")
    assert settings["sampler"] | {"values": ""} == {
        "key": "sampler",
        "value": "canonical",
        "origin": "default",
        "environment": "DEEPINFER_SAMPLER",
        "values": "",
    }


def test_doctor_help_imports_neither_torch_nor_numpy_nor_plugins():
    code = (
        "import sys; from deepinfer_core.cli import main; status = main(['doctor', '--help'])\n"
        "heavy = {'torch', 'numpy', 'deepinfer_cpu', 'deepinfer_native', 'pluggy'} & set(sys.modules)\n"
        "sys.exit(f'{status} {heavy}' if heavy or status else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
