"""What the figures depend on: machine, clock, versions, contracts, plugins, settings."""

from __future__ import annotations

import datetime
import os
import platform
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from deepinfer_core import LLM

DISTRIBUTIONS = (
    "deepinfer-core",
    "deepinfer-native",
    "deepinfer-contracts",
    "deepinfer-bench",
    "torch",
    "numpy",
)
CLOCK_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")


def facts(llm: LLM) -> dict[str, Any]:
    """The head of a report."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(llm.assembly.backend.device),
        "clock": clock(),
        "versions": versions(),
        "contracts": contracts(),
        "plugins": plugins(llm),
        "model": model(llm),
        "settings": settings(llm),
        **({"emulated": True} if llm.built.is_emulated else {}),
    }


def machine(device: Any) -> dict[str, Any]:
    """Processor, cores, load and device."""
    import torch

    found: dict[str, Any] = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_1min": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "device": str(device),
    }
    if torch.device(device).type == "cuda":
        card = torch.cuda.get_device_properties(torch.device(device))
        found |= {
            "device_name": card.name,
            "device_memory_bytes": card.total_memory,
            "multiprocessors": card.multi_processor_count,
            "cuda": torch.version.cuda,
        }
    return found


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def clock() -> dict[str, Any]:
    """Where time stamps come from."""
    info = time.get_clock_info("perf_counter")
    source = CLOCK_SOURCE.read_text("ascii").strip() if CLOCK_SOURCE.is_file() else None
    return {"name": "perf_counter", "implementation": info.implementation, "resolution_s": info.resolution,
            "monotonic": info.monotonic, "kernel_source": source}  # fmt: skip


def versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in DISTRIBUTIONS}


def contracts() -> dict[str, dict[str, str]]:
    """Record -> version and hash of its meaning."""
    from deepinfer_contracts import CONTRACTS

    return {name: {"version": info.version, "hash": info.semantic_hash} for name, info in CONTRACTS.items()}


def plugins(llm: LLM) -> list[dict[str, str]]:
    """Every installed plugin and its state; ``used`` has the part that it made for this engine."""
    assembly: Any = llm.assembly  # made by ``assemble``, so it has the plugins that were looked at
    owners = {origin: part for part, origin in assembly.owners.items()}
    return [
        {
            "kind": record.kind,
            "name": record.name,
            "distribution": f"{record.distribution} {record.version}",
            "state": str(record.state),
            "used": owners.get(record.origin, ""),
        }
        for record in assembly.manager.registry.records
    ]


def model(llm: LLM) -> dict[str, Any]:
    built, config = llm.built, llm.config
    return {
        "path": str(llm.assembly.card.path),
        "architecture": llm.assembly.card.architecture,
        "weights": "random" if config.load_format == "dummy" else "checkpoint",
        "vocab_size": built.vocab_size,
        "max_model_len": built.max_model_len,
        "cache_bytes": built.plan.nbytes,
        "cache_tokens": built.plan.tokens,
        "graphs": built.graphs.line,
    }


def settings(llm: LLM) -> dict[str, Any]:
    """Settings that are not at their defaults, and where they came from."""
    config = llm.config
    return {key: {"value": _plain(config.get(key)), "from": origin} for key, origin in sorted(config.origins.items())}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return [str(item) for item in value] if isinstance(value, tuple | list) else str(value)
