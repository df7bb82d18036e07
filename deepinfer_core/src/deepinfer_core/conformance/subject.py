"""The plugin under test, found as the engine finds it."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import DeepInferError
from deepinfer_core.plugins.manager import PluginManager, backend_missing
from deepinfer_core.plugins.manifest import Manifest
from deepinfer_core.plugins.registry import PluginRecord


@frozen
class Subject:
    """The plugin under test."""

    kind: str
    name: str
    record: PluginRecord
    manager: PluginManager
    arch: str = ""
    """Of a backend that claims by architecture: the one that its probe finds here."""

    @property
    def manifest(self) -> Manifest:
        """Its whole ``deepinfer.toml``; a plugin without one is refused before any test."""
        if self.record.manifest is None:
            raise RuntimeError("a subject has a manifest")
        return self.record.manifest

    @property
    def claims(self) -> frozenset[str]:
        """What its manifest table claims, on the architecture that is here."""
        return self.record.table.claims_for(self.arch)

    @property
    def engine(self) -> dict[str, Any]:
        """Settings of an engine on this backend."""
        return {"backend": self.name, "emulate": self.manager.config.emulate}

    def lacks(self, need: str) -> bool:
        """Whether ``need`` (``feature:graphs``, ``kv:v41_fp4``, ``op:attn.fused_decode``) is neither claimed nor
        something that every plugin of the kind has: required ops, and those that ``cpu`` fills in."""
        if need in self.claims:
            return False
        if self.kind == "backend" and need.startswith("op:"):
            from deepinfer_contracts import OPS

            op = OPS.get(need.removeprefix("op:"))
            return op is None or not (op.required or op.default)
        return True


def find_subject(kind: str, name: str, *, emulate: bool = False) -> Subject:
    """The installed plugin ``name``; ``emulate``: a backend's code on the processor.

    :raises DeepInferError: no plugin has the name (listing those that are there), or it cannot be used; with the
        reason and the remedy of its own.
    """
    config = EngineConfig(backend=name, emulate=emulate) if kind == "backend" else EngineConfig()
    manager = PluginManager.from_config(config)
    record = manager.registry.find(kind, name)
    if record is None:
        raise backend_missing(manager.registry, name) if kind == "backend" else manager.registry.missing(kind, name)
    if record.error is not None:
        raise record.error
    arch = next(iter(record.table.arch), "") if emulate else _arch_here(record) if record.table.claims_on else ""
    return Subject(kind, name, record, manager, arch)


def _arch_here(record: PluginRecord) -> str:
    """The architecture that the probe finds; empty where it finds none: the run is refused then, with its reason."""
    from deepinfer_core.plugins.probe import probe_all

    [outcome] = probe_all([record])
    return outcome.report.arch if outcome.report is not None else ""


def refusal(subject: Subject) -> DeepInferError | None:
    """Why a backend cannot run on this host, as the engine would say it: its probe, its architecture."""
    if subject.kind != "backend":
        return None
    from deepinfer_core.plugins.selection import select_backend
    from deepinfer_core.types import Requirements

    try:
        select_backend(subject.manager, Requirements())
    except DeepInferError as exc:
        return exc
    return None
