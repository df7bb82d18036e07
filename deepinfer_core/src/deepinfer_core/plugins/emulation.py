"""A backend whose own code runs on the processor, because ``--emulate`` asked for it; every result says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer_core.errors import ConfigError, PluginError, UnsupportedFeature

if TYPE_CHECKING:
    from deepinfer_core.config import EngineConfig
    from deepinfer_core.interfaces import Backend
    from deepinfer_core.plugins.manager import PluginManager
    from deepinfer_core.plugins.record import PluginRecord

BANNER = "EMULATED on the processor: this says nothing of the speed of a device"


def emulated_record(manager: PluginManager, name: str) -> PluginRecord:
    """The backend called ``name``, loaded. What its probe would find is not asked.

    :raises ConfigError: ``auto``. :raises UnsupportedFeature: its manifest does not say that it emulates.
    """
    able = [record.name for record in manager.registry.of_kind("backend") if record.table.emulates]
    remedy = f"name one that has: {', '.join(f'--backend {other}' for other in able)}" if able else ""
    if name == "auto":
        raise ConfigError(
            "emulate goes with a backend that is named",
            reason="auto chooses among the devices that are there",
            remedy=remedy or "give --no-emulate: no installed backend has an emulation",
            details={"field": "emulate", "able": able},
        )
    record = manager.require("backend", name)
    if not record.table.emulates:
        raise UnsupportedFeature(
            f"{record.title} has no emulation",
            reason="its manifest does not say emulates = true",
            remedy="give --no-emulate" + (f", or {remedy}" if remedy else ""),
            details={"backend": name, "able": able},
        )
    return record


def check_emulation(record: PluginRecord, backend: Backend, config: EngineConfig) -> None:
    """That the created backend does what was asked for; results would be marked wrongly otherwise.

    :raises PluginError: its capabilities say something else.
    """
    said = backend.capabilities.emulated
    if said != config.emulate:
        asked = "asked to emulate" if config.emulate else "not asked to emulate"
        raise PluginError(
            f"{record.title} was {asked}, and says that it does{'' if said else ' not'}",
            reason="capabilities.emulated of the created backend",
            remedy=f"report it to the authors of {record.distribution}",
            details={"backend": record.name},
        )
