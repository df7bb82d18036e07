"""Backend ``far``: the plain ops of ``cpu`` on the device of ``far_device``, for the conformance kit."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import attrs

from deepinfer_core import hookimpl
from deepinfer_core.errors import ConfigError
from deepinfer_core.types import ProbeReport

AT_LOAD = ("cache.alloc", "cache.view", "engram.prepare", "engram.prepare_gate", "mhc.prepare",
           "quant.prepare_weight", "transform.rope_table")  # fmt: skip
"""Ops that are not part of a step: they may copy and wait."""
WAITS = {
    "index.logits": lambda args, options: options.get("max_k") is None,
    "compress.prefill": lambda args, options: (args[4:5] or (options.get("row_seq"),))[0] is None,
    "meta.decode_metadata": lambda args, options: options.get("valid") is None,
}
"""Ops that wait by their contract: where the caller leaves out what the host would have to know."""


def _launched(op: str, function: Any) -> Any:
    from far_device import launching

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        if op in WAITS and WAITS[op](args, options):
            return function(*args, **options)
        with launching():
            return function(*args, **options)

    return function if op in AT_LOAD else call


@hookimpl
def deepinfer_backend_probe(name: str, host: Any) -> ProbeReport:
    return ProbeReport(present=True, usable=True, devices=("far:0", "cpu"), arch="cpu", score=-1)


@hookimpl
def deepinfer_backend_create(name: str, device: str | None, config: Any) -> Any:
    from far_device import FAR, NAMES, launching  # not for the probe, which must not wait for torch

    from deepinfer_core.interfaces import build_backend, cpu_backend

    if device is not None and device not in NAMES:
        raise ConfigError(f"device '{device}' does not belong to backend 'far'", remedy="leave the device unset")
    plain: Any = cpu_backend(on=FAR)
    return build_backend(
        name,
        {op: _launched(op, function) for op, function in plain.ops.items()},
        device=FAR,
        capabilities=attrs.evolve(plain.capabilities, name=name),
        unit_bytes=plain.unit_bytes,
        alloc_caches=plain.alloc_caches,
        bind_inputs=plain.bind_inputs,
        to_host=plain.to_host,
        no_sync=functools.partial(launching, uploads=True),
        close=plain.close,
        defaults=plain,
    )


def write_site(folder: Path, claims: list[str]) -> None:
    """Entry points of this module in ``folder``, which goes onto the import path beside this one."""
    info, package = folder / "deepinfer_far-1.0.dist-info", folder / "deepinfer_far"
    info.mkdir(parents=True)
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "plugin.py").write_text("from far_backend import *  # noqa: F403\n", encoding="utf-8")
    lines = ["schema = 1", 'api = ">=1.0,<2"', "[[backend]]", 'name = "far"', 'summary = "plain ops on a test device"']
    lines += ['arch = ["cpu"]', f"claims = {claims!r}".replace("'", '"')]
    (package / "deepinfer.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: deepinfer-far\nVersion: 1.0\n", encoding="utf-8")
    entries = "[deepinfer.manifest]\ndeepinfer-far = deepinfer_far:deepinfer.toml\n"
    entries += "[deepinfer.backends]\nfar = deepinfer_far.plugin\n"
    (info / "entry_points.txt").write_text(entries, encoding="utf-8")
