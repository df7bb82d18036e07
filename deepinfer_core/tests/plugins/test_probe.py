"""Probes run in children: whatever one does, the parent gets an answer (``spec/plugins.md`` 9)."""

from __future__ import annotations

import time

import pytest

from deepinfer_core.plugins.probe import probe_all

HEAD = """
import os, sys, signal
from deepinfer_core import hookimpl
from deepinfer_core.types import ProbeReport
@hookimpl
def deepinfer_backend_create(name): return None
@hookimpl
def deepinfer_backend_probe(name, host):
"""
GOOD = "    return ProbeReport(present=True, usable=True, devices=('toy1',), score=3)\n"


def probe(site, body: str, limit_s: float = 30.0, source: str | None = None):
    site.add("toy", (HEAD + body) if source is None else source)
    [outcome] = probe_all([site.record("backend", "toy")], limit_s=limit_s)
    return outcome


def test_probe_of_a_good_plugin_gives_its_report(site):
    outcome = probe(site, GOOD)
    assert outcome.report is not None
    assert (outcome.report.devices, outcome.report.score, outcome.failure) == (("toy1",), 3, "")
    assert outcome.device_present


def test_probe_that_prints_a_lot_still_answers(site):
    noise = "    print('x' * 300000)\n    print('{}', file=sys.stderr)\n    os.write(1, b'{\"report\": 1}\\n')\n"
    assert probe(site, noise + GOOD).report is not None


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        ("    os.kill(os.getpid(), signal.SIGSEGV)\n", "probe crashed: signal 11"),
        ("    os._exit(0)\n", "probe exited with status 0 and no result"),
        (
            "    print('libtoy: fatal', file=sys.stderr, flush=True)\n    os._exit(7)\n",
            "probe exited with status 7 and no result; it printed: libtoy: fatal",
        ),
        ("    raise OSError('no driver')\n", "probe failed: OSError: no driver (raised at acme_toy/plugin.py:9)"),
        ("    raise SystemExit(3)\n", "probe failed: SystemExit: 3 (raised at acme_toy/plugin.py:9)"),
        ("    return {'present': True}\n", "probe returned dict, expected a ProbeReport"),
        ("    return None\n", "probe returned None, expected a ProbeReport"),
        (
            "    return ProbeReport(present='yes', usable=True)\n",
            "probe wrote something that is no result",
        ),
    ],
    ids=["segfault", "exit0", "exit7", "raises", "systemexit", "dict", "none", "wrong_field"],
)
def test_probe_that_goes_wrong_counts_as_present_and_says_how(site, body, failure):
    outcome = probe(site, body)
    assert (outcome.report, outcome.failure, outcome.crashed) == (None, failure, True)
    assert outcome.device_present


def test_probe_that_hangs_is_killed_with_its_children_at_the_limit(site):
    body = "    import subprocess, time\n    subprocess.Popen(['sleep', '600'])\n    time.sleep(600)\n"
    began = time.monotonic()
    outcome = probe(site, body, limit_s=1.0)
    assert outcome.failure == "probe gave no answer within 1 s"
    assert outcome.crashed
    assert time.monotonic() - began < 5


def test_probe_that_writes_garbage_on_the_answer_pipe_is_no_result(site):
    garbage = "    for fd in range(3, 20):\n        try: os.write(fd, b'garbage\\n')\n        except OSError: pass\n"
    outcome = probe(site, garbage + "    os._exit(0)\n")
    assert outcome.failure == "probe wrote something that is no result"


@pytest.mark.parametrize(
    ("source", "failure"),
    [
        (
            "import no_such_module_here\n",
            (
                "plugin failed in import: ModuleNotFoundError: No module named 'no_such_module_here' "
                "(raised at acme_toy/plugin.py:1)"
            ),
        ),
        ("raise SystemExit('bye')\n", "plugin failed in import: SystemExit: bye (raised at acme_toy/plugin.py:1)"),
    ],
)
def test_probe_of_a_plugin_that_cannot_be_imported_says_nothing_about_the_host(site, source, failure):
    outcome = probe(site, "", source=source)
    assert (outcome.failure, outcome.plugin_failed, outcome.device_present) == (failure, True, False)


def test_probe_of_a_plugin_without_a_probe_hook_says_so(site, sources):
    outcome = probe(site, "", source=sources["backend"])
    assert (outcome.failure, outcome.device_present) == ("it has no deepinfer_backend_probe", False)


def test_probe_that_is_interrupted_leaves_no_child_behind(site, monkeypatch):
    from deepinfer_core.plugins import child as module

    site.add("toy", HEAD + "    import time\n    time.sleep(600)\n")
    children = []

    def interrupted(child):
        children.append(child)
        raise KeyboardInterrupt

    monkeypatch.setattr(module.Child, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        probe_all([site.record("backend", "toy")])
    assert children[0].process.poll() == -9


def test_probe_that_cannot_be_started_counts_as_present(site, monkeypatch):
    import sys

    site.add("toy", HEAD + GOOD)
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    [outcome] = probe_all([site.record("backend", "toy")])
    assert (outcome.failure, outcome.crashed) == ("probe could not be started: No such file or directory", True)


def test_probes_run_at_the_same_time_and_answer_in_order(site):
    for name in ("aa", "bb", "cc"):
        site.add(name, HEAD + "    import time\n    time.sleep(600)\n")
    began = time.monotonic()
    records = site.registry().of_kind("backend")
    outcomes = probe_all(records, limit_s=1.5)
    assert [outcome.record.name for outcome in outcomes] == ["aa", "bb", "cc"]
    assert time.monotonic() - began < 4
