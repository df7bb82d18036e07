"""Distributions made on disk: real ``*.dist-info`` folders and packages on the import path, without pip."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from deepinfer_core.config import EngineConfig
from deepinfer_core.plugins.manager import PluginManager
from deepinfer_core.plugins.record import PluginRecord
from deepinfer_core.plugins.registry import Registry

KINDS = ("backend", "model", "sampler", "grammar", "logits_filter", "scorer", "extension")
GROUPS = {kind: f"deepinfer.{kind}s" for kind in KINDS}

BACKEND = """
from deepinfer_core import hookimpl
from deepinfer_core.types import Capabilities, ProbeReport

class Toy:
    device = "toy:0"
    ops = {}
    plan = {}
    def __init__(self, name):
        self.name = name
        self.closed = 0
        self.capabilities = Capabilities(name=name, device_type="toy", arch="toy1", kv_formats=frozenset({"v41"}))
    def unit_bytes(self, specs, pool): return 32
    def alloc_caches(self, specs, units): return None
    def bind_inputs(self, record): return record
    def to_host(self, tensor): return tensor
    def close(self): self.closed += 1

@hookimpl
def deepinfer_backend_create(name, device, config):
    return Toy(name)
"""

PROBE = """
@hookimpl
def deepinfer_backend_probe(name, host):
    return ProbeReport(present={present}, usable={usable}, devices={devices}, score={score}, reasons={reasons},
                       remedy={remedy!r})
"""

MODEL = """
from deepinfer_core import hookimpl
from deepinfer_core.types import CacheLayer, CacheSpec, ModelMatch, Requirements, SchedulerHints

class TinyLM:
    vocab_size = 16
    loaded = None
    def load(self, path): self.loaded = path
    def forward(self, inputs, caches): return None
    def logits(self, hidden): return hidden

@hookimpl
def deepinfer_model_match(card):
    return ModelMatch(name="tiny", requirements={requirements}, score={score})

@hookimpl
def deepinfer_cache_specs(match, config):
    return [CacheSpec(name="main", pool="main", layers=[CacheLayer(0, 128, "v41", 512)])]

@hookimpl
def deepinfer_model_create(match, config, backend):
    return TinyLM()

@hookimpl
def deepinfer_scheduler_hints(match, backend):
    return SchedulerHints(window=8, max_model_len=64)
"""


def probe_source(
    *,
    present: bool = True,
    usable: bool = True,
    devices: tuple[str, ...] = ("toy1",),
    score: int = 0,
    reasons: tuple[str, ...] = (),
    remedy: str = "",
) -> str:
    values = {"present": present, "usable": usable, "devices": devices, "score": score, "reasons": reasons}
    return PROBE.format(**values, remedy=remedy)


def model_source(*, requirements: str = "Requirements()", score: int = 0) -> str:
    return MODEL.replace("{requirements}", requirements).replace("{score}", str(score))


class Site:
    """A folder on the import path that fake distributions are put into."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.packages: list[str] = []

    def add(
        self,
        name: str,
        source: str = BACKEND,
        *,
        kind: str = "backend",
        dist: str = "",
        version: str = "1.0",
        api: str = ">=1.0,<2",
        table: str = "",
        manifest: str | None = None,
        manifest_entry: bool = True,
    ) -> Path:
        """Make a distribution with one plugin. ``table`` is appended to its manifest table. Returns its package."""
        dist = dist or f"acme-{name}"
        # A fake of one of our own distributions must not take the place of the real package in this process.
        package = dist.replace("-", "_") + ("_fake" if dist.startswith("deepinfer") else "")
        self.packages.append(package)
        info = self.folder / f"{package}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n")
        entries = f"[{GROUPS[kind]}]\n{name} = {package}.plugin\n"
        if manifest_entry:
            entries += f"[deepinfer.manifest]\n{dist} = {package}:deepinfer.toml\n"
        (info / "entry_points.txt").write_text(entries)
        home = self.folder / package
        home.mkdir()
        (home / "__init__.py").write_text("")
        (home / "plugin.py").write_text(source)
        if manifest is None:
            manifest = f'schema = 1\napi = "{api}"\n[[{kind}]]\nname = "{name}"\nsummary = "toy"\n{table}\n'
        if manifest:
            (home / "deepinfer.toml").write_text(manifest)
        return home

    def entries(self) -> list[metadata.EntryPoint]:
        return [entry for dist in metadata.distributions(path=[str(self.folder)]) for entry in dist.entry_points]

    def config(self, **settings: object) -> EngineConfig:
        return EngineConfig.resolve({key.replace("__", "."): value for key, value in settings.items()}, environ={})

    def registry(self, **settings: object) -> Registry:
        return Registry.build(self.config(**settings), self.entries())

    def manager(self, **settings: object) -> PluginManager:
        return PluginManager.from_config(self.config(**settings), self.entries())

    def record(self, kind: str, name: str, **settings: object) -> PluginRecord:
        record = self.registry(**settings).find(kind, name)
        if record is None:
            raise LookupError(f"{kind} {name} was not found in {self.folder}")
        return record

    def run(self, *arguments: str, optimise: bool = False, **environ: str) -> subprocess.CompletedProcess[str]:
        """The command line in a process of its own, with this folder before the installed distributions."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("DEEPINFER_")}
        command = [sys.executable, *(["-O"] if optimise else []), "-m", "deepinfer_core.cli", *arguments]
        environment = inherited | {"PYTHONPATH": str(self.folder)} | environ
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    made = Site(folder)
    yield made
    for package in made.packages:
        for name in [key for key in sys.modules if key == package or key.startswith(package + ".")]:
            del sys.modules[name]


@pytest.fixture
def checkpoint_of(tmp_path: Path):
    """Make a folder with a ``config.json`` of an architecture."""

    def make(architecture: str) -> Path:
        folder = tmp_path / "checkpoint"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(f'{{"architectures": ["{architecture}"], "model_type": "tiny"}}')
        return folder

    return make


@pytest.fixture
def sources() -> dict[str, object]:
    """The texts of the fake plugins, for tests that vary them."""
    return {"backend": BACKEND, "probe": probe_source, "model": model_source}
