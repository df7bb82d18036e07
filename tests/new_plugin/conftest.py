"""One new plugin of each kind, written by the command."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# Pytest runs in importlib mode, which adds no path. The throw-away venv is that of the fake plugins.
sys.path.insert(0, str(Path(__file__).parent.parent / "fakeplugins"))

KINDS = ("backend", "model", "sampler", "logits-filter", "grammar", "scorer", "extension")


@pytest.fixture(scope="session")
def projects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kind -> folder of the project; the plugin is called ``acme_KIND``."""
    pytest.importorskip("jinja2")
    from deepinfer_core.cli import main

    folder = tmp_path_factory.mktemp("projects")
    made = {}
    for kind in KINDS:
        name = f"acme_{kind.replace('-', '_')}"
        status = main(["new-plugin", kind, name, "--dir", str(folder)])
        if status:
            raise RuntimeError(f"new-plugin {kind} {name} ended with {status}")
        made[kind] = folder / f"deepinfer-{name.replace('_', '-')}"
    return made
