"""The backend object: which op is served by whom, on which device."""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

import torch

from deepinfer_core.caches import unit_bytes
from deepinfer_core.errors import BackendUnavailable, ConfigError, PluginError, UnsupportedArch
from deepinfer_core.interfaces import build_backend, cpu_backend
from deepinfer_cuda import ops
from deepinfer_cuda.arches import SUPPORTED, arch_of
from deepinfer_cuda.capabilities import capabilities
from deepinfer_cuda.device.runtime import DeviceRuntime
from deepinfer_cuda.faults import typed, wrapped
from deepinfer_cuda.unproven import serves
from deepinfer_cuda.vendor.serving import chosen as chosen_vendors
from deepinfer_cuda.vendor.serving import serve

NAME = "cuda"
CHECK_NAN = "DEEPINFER_CUDA_CHECK_NAN"
"""Environment variable: wait for each op and look for NaN in its result. Slow; for finding where one comes from."""


def create(device: str | None = None, config: Any = None) -> Any:
    """A ready backend on ``device`` (None: torch's current one).

    :raises ConfigError: ``device`` is no CUDA device, or there are not that many.
    :raises BackendUnavailable: torch has no CUDA, or finds no device.
    :raises UnsupportedArch: no kernels for the device.
    """
    chosen = _device(device)
    arch = arch_of(torch.cuda.get_device_capability(chosen))
    if arch not in SUPPORTED:
        raise UnsupportedArch(
            f"backend 'cuda' has no kernels for {torch.cuda.get_device_name(chosen)}",
            reason=f"found {arch}; kernels exist for {', '.join(SUPPORTED)}",
            remedy=f"use a device of {', '.join(SUPPORTED)}, or choose --backend cpu",
            details={"backend": NAME, "arch": arch, "supported": list(SUPPORTED)},
        )
    torch.cuda.set_device(chosen)
    _full_precision()
    watch = os.environ.get(CHECK_NAN, "0") not in ("", "0")
    table, providers = serve(op_table(), chosen_vendors(), arch)
    plain = cpu_backend(on=chosen)
    runtime = DeviceRuntime(chosen)

    def close() -> None:
        runtime.close()
        plain.close()

    delegated = {op: call for op, call in plain.ops.items() if op not in table}
    idle = [op for op in table if not serves(op) and op not in providers]  # there, and done by the plain op
    providers |= {op: plain.plan[op] for op in (*delegated, *idle)}
    return build_backend(
        NAME,
        wrapped({**table, **delegated}, watch=watch),
        providers=providers,
        device=chosen,
        capabilities=capabilities(arch, memory_bytes=torch.cuda.get_device_properties(chosen).total_memory),
        unit_bytes=unit_bytes,
        alloc_caches=runtime.alloc_caches,
        bind_inputs=runtime.bind_inputs,
        to_host=runtime.to_host,
        record_event=runtime.record_event,
        wait=runtime.wait,
        no_sync=runtime.no_sync,
        prefetch=runtime.prefetch,
        capture=None if watch else runtime.capture,  # what is looked at is read on the host, op by op
        copy_all=runtime.copy_all,
        host_like=runtime.host_like,
        explain_fault=typed,
        close=close,
        defaults=plain,
    )


def op_table() -> Mapping[str, Callable[..., Any]]:
    """Op id -> callable, of every module in ``ops``.

    :raises PluginError: two modules give the same op.
    """
    table: dict[str, Callable[..., Any]] = {}
    owners: dict[str, str] = {}
    for found in pkgutil.iter_modules(ops.__path__):
        module = importlib.import_module(f"{ops.__name__}.{found.name}")
        for op, function in module.OPS.items():
            if op in table:
                raise PluginError(
                    f"two modules of deepinfer-cuda give op {op}",
                    reason=f"{owners[op]} and {found.name}",
                    remedy="this is a fault of the distribution, please report it",
                )
            table[op], owners[op] = function, found.name
    return table


def _device(text: str | None) -> torch.device:
    if not torch.cuda.is_available():
        built = torch.version.cuda
        raise BackendUnavailable(
            "torch cannot use a CUDA device here",
            reason=f"torch {torch.__version__} is built "
            + (f"for CUDA {built}, and finds no usable device" if built else "without CUDA"),
            remedy="deepinfer doctor cuda says what is missing; or choose --backend cpu",
            details={"backend": NAME},
        )
    try:
        device = torch.device(text or NAME)
    except RuntimeError:
        device = torch.device("meta")
    count = torch.cuda.device_count()
    index = torch.cuda.current_device() if device.index is None else device.index
    if device.type != NAME or index >= count:
        raise ConfigError(
            f"device '{text}' does not belong to backend 'cuda'",
            reason=f"its devices are {', '.join(f'cuda:{i}' for i in range(count))}",
            remedy="choose one of them, or leave the device unset",
        )
    return torch.device(NAME, index)


def _full_precision() -> None:
    """Products of fp32 operands are fp32: mode ``exact`` runs the plain ops, and their limits allow no TF32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
