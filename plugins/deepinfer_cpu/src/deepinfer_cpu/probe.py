"""Whether this host can run the cpu backend; imports no torch."""

from __future__ import annotations

import importlib.metadata

from deepinfer_core.types import HostInfo, ProbeReport


def probe(host: HostInfo) -> ProbeReport:
    """Present on every host; usable where torch is installed. Creates no device context."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ProbeReport(
            present=True,
            usable=False,
            devices=("cpu",),
            arch="cpu",
            reasons=("torch is not installed",),
            remedy="pip install 'torch>=2.13,<2.15'",
        )
    return ProbeReport(present=True, usable=True, devices=("cpu",), arch="cpu", driver=f"torch {version}", score=0)
