"""Every op of the op table has a test of the kit that says so by its marker ``op``."""

import json
import os
import subprocess
import sys

import pytest

from deepinfer_contracts import OPS

pytest.importorskip("torch")
PLUGIN = """
import json

def pytest_collection_finish(session):
    by_op = {}
    for item in session.items:
        for mark in item.iter_markers("op"):
            for op in mark.args:
                by_op.setdefault(op, []).append(item.nodeid)
    with open("ops.json", "w") as file:
        json.dump({op: len(tests) for op, tests in by_op.items()}, file)
"""


@pytest.fixture(scope="module")
def tests_by_op(tmp_path_factory) -> dict[str, int]:
    folder = tmp_path_factory.mktemp("collect")
    (folder / "kit_op_marks.py").write_text(PLUGIN, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "kit_op_marks", "-p", "deepinfer_core.conformance.pytest_plugin"]
    command += ["--pyargs", "deepinfer_core.conformance", "--backend", "cpu", "--level", "full", "--collect-only", "-q"]
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert (folder / "ops.json").exists(), done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads((folder / "ops.json").read_text(encoding="utf-8"))


def test_every_op_of_the_table_has_a_test_of_the_kit(tests_by_op):
    assert sorted(set(OPS) - set(tests_by_op)) == []


def test_no_test_of_the_kit_names_an_op_that_is_not_there(tests_by_op):
    assert sorted(set(tests_by_op) - set(OPS)) == []
