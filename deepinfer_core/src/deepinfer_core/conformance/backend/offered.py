"""What the backend offers of cache formats: a test of a format that it does not claim is skipped, with the reason."""

from __future__ import annotations

from typing import Any

import pytest

PREFERRED = {"kv": ("v41", "bf16", "f32", "v41_fp4"), "index": ("index_fp4", "index_mxfp8", "index_fp8", "bf16", "f32")}


def formats(backend: Any, kind: str) -> frozenset[str]:
    """Formats of ``kind`` (``kv`` or ``index``) in the capabilities of the backend."""
    offered: frozenset[str] = getattr(backend.capabilities, f"{kind}_formats")
    return offered


def require_format(backend: Any, kind: str, name: str) -> None:
    """Skip the test unless the backend offers ``name``."""
    if name not in formats(backend, kind):
        pytest.skip(f"not offered: {kind} format {name}")


def partner(backend: Any, kind: str) -> str:
    """A format of ``kind`` that the backend offers, for tests of something else."""
    return next((name for name in PREFERRED[kind] if name in formats(backend, kind)), PREFERRED[kind][0])
