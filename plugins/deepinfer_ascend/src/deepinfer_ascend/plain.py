"""The ops of ``cpu``, on tensors of the device: what an op of this backend does where it has no kernel.

Mode ``exact`` (fp32 activations) and what no kernel is bound for take them, and the equivalents of ``emulation/``
compute with them. No plugin imports another one, so they
come through the plugin registry, once for a process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any


@functools.cache
def plain_op(op: str) -> Callable[..., Any]:
    """The op ``op`` of backend ``cpu``, e.g. ``norm.rms``.

    :raises BackendNotInstalled: ``deepinfer-cpu`` is not installed.
    """
    found: Callable[..., Any] = _plain_ops()[op]
    return found


@functools.cache
def _plain_ops() -> Mapping[str, Callable[..., Any]]:
    from deepinfer_core.interfaces import cpu_backend

    backend = cpu_backend()
    ops = backend.ops
    backend.close()  # ops keep nothing; what it gives back are the threads of torch
    return ops
