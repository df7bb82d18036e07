"""A plugin that cannot be imported, or makes nothing, is one failure of the kit, and not one for each test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MANIFEST = 'schema = 1\napi = ">=1.0,<2"\n[[scorer]]\nname = "bad"\nsummary = "it is broken"\n'
ENTRIES = "[deepinfer.scorers]\nbad = acme_bad.plugin\n[deepinfer.manifest]\nacme-bad = acme_bad:deepinfer.toml\n"
MAKES_NONE = """
from deepinfer_core import hookimpl

@hookimpl
def deepinfer_sampler_create(name, params, vocab_size, config, backend):
    raise KeyError("x")
"""


@pytest.mark.parametrize(
    ("kind", "source", "what"),
    [
        ("scorer", "raise RuntimeError('a broken module')", "failed in import: RuntimeError: a broken module"),
        ("sampler", MAKES_NONE, "failed in create: KeyError: 'x'"),
    ],
)
def test_plugin_of_which_nothing_can_be_made_is_one_failure(tmp_path: Path, kind: str, source: str, what: str) -> None:
    if kind == "sampler":
        pytest.importorskip("torch", reason="samplers are made for a backend")
    package, info = tmp_path / "acme_bad", tmp_path / "acme_bad-1.0.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").touch()
    (package / "plugin.py").write_text(source)
    (package / "deepinfer.toml").write_text(MANIFEST.replace("scorer", kind))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-bad\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES.replace("scorers", f"{kind}s"))
    chosen = "deepinfer_core.conformance.sampler.test_reported" if kind == "sampler" else "deepinfer_core.conformance"
    plugin = ("-p", "deepinfer_core.conformance.pytest_plugin", "-p", "no:cacheprovider")
    words = (sys.executable, "-m", "pytest", "-q", *plugin, "--pyargs", chosen, f"--{kind}", "bad", "--report=r.json")
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, timeout=100, check=False)
    assert done.returncode == 1
    found = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    outcomes = [test["outcome"] for test in found["tests"]]
    assert outcomes.count("error") + outcomes.count("failed") == 1, json.dumps(found["tests"])
    [told] = [test for test in found["tests"] if test["outcome"] == "error"]
    assert what in told["reason"]
    behind = [test["reason"] for test in found["tests"] if test["reason"].endswith(f"see {told['test']}")]
    assert len(behind) > 2
    assert set(behind) == {f"what it needs cannot be made: see {told['test']}"}
