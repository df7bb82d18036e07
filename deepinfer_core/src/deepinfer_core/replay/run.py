"""What a line of a result file says beside the answer, so that the line alone can be repeated.

``run`` is the model (path as given, and a fingerprint of its content), the backend, the ops that another distribution
than its own serves, the settings that are not at their defaults, and versions. It stands in every line: files of
results are filtered, sorted and joined, and neither a header line nor a file beside them would survive that.
``params`` are the sampling parameters that are not at their defaults, with the seed that was used;
``prompt_token_ids`` is the prompt as the model saw it.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any

from attrs import fields

from deepinfer_core.assembly.fingerprint import model_fingerprint
from deepinfer_core.config import EngineConfig, settings_by_key
from deepinfer_core.observation.settings import ObserveSettings
from deepinfer_core.parameters.named_parts import NamedPart
from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_core.structured.forms import NAMES as STRUCTURED

if TYPE_CHECKING:
    from deepinfer_core.llm import LLM
    from deepinfer_core.requests.request import Request

FORMAT = 1
"""Version of all this; a reader refuses what it does not know."""

CHOOSE_NO_TOKEN = frozenset(
    {
        *("model", "backend", "max_model_len"),  # they stand beside the settings, as they turned out
        "seed",  # the seeds made from it stand in each line
        *("validation", "sync_guard", "strict_plugins", "trace_hooks", "debug"),
        *("so_builder_cpus", "so_timeout_s", "so_cache_bytes"),
        *(f"observe.{item.name}" for item in fields(ObserveSettings)),
        *("plugins.enable", "plugins.disable", "plugins.prefer", "plugins.lock", "plugins.allow"),
    }
)
"""Settings that are left out: what they decide stands elsewhere, or chooses no token."""

DISTRIBUTIONS = ("deepinfer-core", "deepinfer-native", "deepinfer-contracts")
LIBRARIES = ("torch", "numpy", "xgrammar")
"""Their versions are named where they are loaded."""


def describe_run(llm: LLM) -> dict[str, Any]:
    """The ``run`` of an engine's results, JSON-serialisable. Reads the model's files."""
    config, assembly = llm.config, llm.assembly
    default = EngineConfig()
    settings = {
        key: _plain(config.get(key))
        for key in settings_by_key()
        if key not in CHOOSE_NO_TOKEN and config.get(key) != default.get(key)
    }
    versions = {"python": platform.python_version()}
    for name in (*DISTRIBUTIONS, *(library for library in LIBRARIES if library in sys.modules)):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    for part, owner in sorted(assembly.owners.items()):
        versions[part] = owner
    served = served_by_others(llm)
    return {
        "format": FORMAT,
        "model": config.model,
        "fingerprint": model_fingerprint(assembly.card.path),
        "backend": assembly.backend.name,
        "arch": assembly.backend.capabilities.arch,
        "machine": platform.machine(),
        "max_model_len": llm.built.max_model_len,
        "settings": settings,
        "versions": versions,
        **({"ops": served} if served else {}),
    }


def served_by_others(llm: LLM) -> dict[str, str]:
    """Op -> distribution, of those that another one than the backend's own serves: ``cpu``'s, or a vendor's library."""
    own = llm.assembly.owners["backend"]  # name (distribution version)
    plan = llm.assembly.backend.plan
    return {op: plan[op] for op in sorted(plan) if f"({plan[op]} " not in own}


def differences_of_runs(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """What differs, one phrase each; the model's path and fingerprint are not looked at."""
    for key in ("backend", "arch", "machine", "max_model_len"):
        if recorded.get(key) != now.get(key):
            yield f"{key} is {now.get(key)}, was {recorded.get(key)}"
    for table in ("settings", "versions"):
        before, after = recorded.get(table, {}), now.get(table, {})
        for key in sorted({*before, *after}):
            if before.get(key) != after.get(key):
                # A library or plugin that only one of them needed, such as that of grammars, is no difference.
                if table == "versions" and (key not in before or key not in after):
                    continue
                yield f"{key} is {after.get(key, 'at its default')}, was {before.get(key, 'at its default')}"
    before, after = recorded.get("ops", {}), now.get("ops", {})
    for op in sorted({*before, *after}) if recorded.get("backend") == now.get("backend") else ():
        if before.get(op) != after.get(op):
            yield f"op {op} is served by {after.get(op, 'the backend')}, was by {before.get(op, 'the backend')}"


def request_fields(head: Request) -> dict[str, Any]:
    """``prompt_token_ids`` and ``params`` of a finished prompt."""
    record: dict[str, Any] = {
        "prompt_token_ids": list(head.prompt_token_ids),
        "params": params_record(head.params, head.seed),
    }
    if head.params.stop and head.chat is not None:
        record["stops_between"] = list(head.chat.stops_between)
    return record


def params_record(params: SamplingParams, seed: int | None) -> dict[str, Any]:
    """Those of ``params`` that are not at their defaults, JSON-serialisable, and the seed that was used."""
    record = {
        item.name: _plain(getattr(params, item.name))
        for item in fields(SamplingParams)
        if item.name not in (*STRUCTURED, "seed") and getattr(params, item.name) != item.default
    }
    if params.structured is not None:
        record["so_args"] = params.structured.as_record()
    if seed is not None:
        record["seed"] = seed
    return record


def _plain(value: Any) -> Any:
    if isinstance(value, NamedPart):
        return {"name": value.name, "params": dict(value.params)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value
