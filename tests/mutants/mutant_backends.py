"""The mutants of backends as one installed distribution: the kit finds them as it finds any third party's plugin."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import evolve
from mutant import Mutant

SOUND = "sound"
"""``cpu`` without any fault, by the same way."""
_DISTRIBUTION = "deepinfer-mutants"
PLUGIN = """
from deepinfer_core import hookimpl


@hookimpl
def deepinfer_backend_create(name, device, config):
    import mutant_backends

    return mutant_backends.create(name, device, config)
"""
_PROBE = """
@hookimpl
def deepinfer_backend_probe(name, host):
    from deepinfer_core.types import ProbeReport

    return ProbeReport(present=True, usable=True, devices=("cpu",), arch="cpu")
"""
_BY_NAME: dict[str, Mutant] = {}


def install(mutants: Mapping[str, Mutant], folder: Path) -> None:
    """Make the distribution in ``folder`` and put it on the import path.

    :param mutants: Name of the backend -> mutant.
    """
    from deepinfer_cpu import plugin as cpu_plugin

    cpu_claims = _claims(Path(str(cpu_plugin.__file__)).with_name("deepinfer.toml"))
    package = folder / "deepinfer_mutants"
    package.mkdir()
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "plugin.py").write_text(PLUGIN, encoding="utf-8")
    manifest, entries = ["schema = 1", 'api = ">=1.0,<2"'], []
    for name, mutant in {SOUND: Mutant(name=SOUND, caught_by="", module=PLUGIN + "\n" + _PROBE), **mutants}.items():
        module = "plugin"
        if mutant.module:
            module = f"plugin_{name}"
            (package / f"{module}.py").write_text(mutant.module, encoding="utf-8")
        claims = [f"  {claim!r}," for claim in (*cpu_claims, *mutant.claims)]
        manifest += [
            "[[backend]]",
            f'name = "{name}"',
            f'summary = "cpu with the fault {mutant.name}"',
            f'arch = ["{mutant.arch}"]',
            "claims = [",
            *claims,
            "]",
        ]
        entries.append(f"{name} = deepinfer_mutants.{module}")
    (package / "deepinfer.toml").write_text("\n".join(manifest) + "\n", encoding="utf-8")
    info = folder / "deepinfer_mutants-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {_DISTRIBUTION}\nVersion: 1.0\n", encoding="utf-8")
    listed = ["[deepinfer.manifest]", f"{_DISTRIBUTION} = deepinfer_mutants:deepinfer.toml", "[deepinfer.backends]"]
    (info / "entry_points.txt").write_text("\n".join([*listed, *entries]) + "\n", encoding="utf-8")
    sys.path.insert(0, str(folder))
    _BY_NAME.update(mutants)


def create(name: str, device: str | None, config: Any) -> Any:
    """``cpu`` under another name, with the fault of the mutant ``name``."""
    from deepinfer_core.interfaces import build_backend
    from deepinfer_cpu import backend as cpu

    base = cpu.create(device, config)
    arguments: dict[str, Any] = {
        "ops": {**base.ops, **dict.fromkeys(cpu.ABSENT)},
        "device": base.device,
        "capabilities": evolve(base.capabilities, name=name),
        "close": base.close,
        "provider": _DISTRIBUTION,
    }
    for function in ("unit_bytes", "alloc_caches", "bind_inputs", "to_host", "no_sync"):
        arguments[function] = getattr(base, function)
    mutant = _BY_NAME.get(name)
    if mutant is not None and mutant.make is not None:
        arguments["ops"][mutant.op] = mutant.make(arguments["ops"][mutant.op])
    if mutant is not None and mutant.change is not None:
        mutant.change(arguments)
    return build_backend(name, **arguments)


def _claims(manifest: Path) -> list[str]:
    import tomllib

    [table] = tomllib.loads(manifest.read_text(encoding="utf-8"))["backend"]
    return list(table["claims"])
