"""The backend object: which op is served by whom, on which device, or on the processor in its place."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

import torch

from deepinfer_ascend import emulation, ops
from deepinfer_ascend.arches import SUPPORTED, arch_of
from deepinfer_ascend.capabilities import capabilities
from deepinfer_ascend.coverage import served
from deepinfer_ascend.device.environment import RuntimeEnvironment
from deepinfer_ascend.device.faults import typed
from deepinfer_ascend.device.host_graphs import capture_on_host
from deepinfer_ascend.device.options import apply_options
from deepinfer_ascend.device.runtime import DeviceRuntime
from deepinfer_ascend.jit import serving
from deepinfer_ascend.jit.placing import on_its_device, wanted_on_device
from deepinfer_ascend.jit.ready import require_tools
from deepinfer_core.caches import unit_bytes
from deepinfer_core.errors import BackendUnavailable, ConfigError, PluginError, UnsupportedArch, VendorImportError
from deepinfer_core.interfaces import build_backend, cpu_backend

NAME, DEVICE = "ascend", "npu"


def create(device: str | None = None, config: Any = None) -> Any:
    """A ready backend on ``device`` (None: the current one); with the setting ``emulate``, on the processor.

    :raises VendorImportError: torch_npu cannot be imported.
    :raises BackendUnavailable: it finds no device.
    :raises ConfigError: ``device`` is no NPU, or there are not that many.
    :raises UnsupportedArch: the device is no Ascend 950.
    """
    if getattr(config, "emulate", False):
        return _emulated(device)
    environment = RuntimeEnvironment()
    environment.apply()
    try:
        return _on_npu(device, environment)
    except BaseException:
        environment.restore()
        raise


def op_table() -> Mapping[str, Callable[..., Any]]:
    """Op id -> callable, of every module in ``ops``.

    :raises PluginError: two modules give the same op.
    """
    table: dict[str, Callable[..., Any]] = {}
    for found in pkgutil.iter_modules(ops.__path__):
        part = importlib.import_module(f"{ops.__name__}.{found.name}").OPS
        twice = sorted(table.keys() & part.keys())
        if twice:
            raise PluginError(
                f"two modules of deepinfer-ascend give op {', '.join(twice)}",
                reason=f"{found.name} is the second",
                remedy="this is a fault of the distribution, please report it",
            )
        table |= part
    return table


def _emulated(device: str | None) -> Any:
    """The same ops on tensors of the host: vendor calls are served by the equivalents of ``emulation/``."""
    if device not in (None, "cpu"):
        raise ConfigError(
            f"device '{device}' is none of an emulation",
            reason="it runs on the processor",
            remedy="leave the device unset",
        )
    lower = serving.asked()
    if lower:
        require_tools()
    plain = cpu_backend()
    emulation.open_emulation()
    closers = [plain.close, emulation.close_emulation]

    def close() -> None:
        while closers:
            closers.pop()()

    return _build(
        plain,
        lower=lower,
        device=torch.device("cpu"),
        capabilities=capabilities(
            memory_bytes=plain.capabilities.memory_bytes, emulated=True, plain=_left_to_cpu(plain, lower)
        ),
        capture=capture_on_host,
        no_sync=getattr(plain, "no_sync", None),
        close=close,
    )


def _build(plain: Any, *, lower: bool = False, **methods: Any) -> Any:
    """``lower``: with kernels of ours in front of the ops that they serve."""
    table = dict(op_table())
    if lower:
        table |= {op: on_its_device(call) for op, call in serving.serve({**plain.ops, **table}).items()}
    complete = {**plain.ops, **table}
    return build_backend(
        NAME,
        complete,
        providers={op: plain.plan[op] for op in _left_to_cpu(plain, lower)},
        unit_bytes=unit_bytes,
        alloc_caches=plain.alloc_caches,
        defaults=plain,
        **{"bind_inputs": plain.bind_inputs, "to_host": plain.to_host, **methods},
    )


def _left_to_cpu(plain: Any, lower: bool) -> frozenset[str]:
    """Ops that plain ones compute: an op of ``ops/`` whose kernel is missing comes down to one, and the plan tells."""
    return frozenset({*plain.ops, *op_table()} - served(lowered=lower))


def _on_npu(device: str | None, environment: RuntimeEnvironment) -> Any:
    module = _runtime_module()
    chosen = _device(module, device)
    chip = module.get_device_name(chosen)
    if arch_of(chip) not in SUPPORTED:
        raise UnsupportedArch(
            f"backend 'ascend' has no kernels for {chip}",
            reason=f"kernels exist for {', '.join(SUPPORTED)}",
            remedy=f"use a device of {', '.join(SUPPORTED)}, or choose --backend cpu",
            details={"backend": NAME, "chip": chip, "supported": list(SUPPORTED)},
        )
    apply_options(module)
    module.set_device(chosen)
    plain = cpu_backend(on=chosen)
    runtime = DeviceRuntime(module, chosen)

    def close() -> None:
        runtime.close()
        plain.close()
        environment.restore()

    return _build(
        plain,
        lower=wanted_on_device(),
        device=chosen,
        capabilities=capabilities(memory_bytes=module.get_device_properties(chosen).total_memory),
        bind_inputs=runtime.bind_inputs,
        to_host=runtime.to_host,
        prefetch=runtime.prefetch,
        record_event=runtime.record_event,
        wait=runtime.wait,
        capture=runtime.capture,
        explain_fault=typed,
        close=close,
    )


def _runtime_module() -> Any:
    """``torch.npu``, which torch_npu makes. Imported here and nowhere else."""
    try:
        importlib.import_module("torch_npu")
    except Exception as exc:  # a missing library of CANN raises whatever it likes
        first = str(exc).splitlines()[0] if str(exc) else ""
        raise VendorImportError(
            "torch_npu cannot be imported",
            reason=f"{type(exc).__name__}: {first}",
            remedy="source set_env.sh of CANN, then run deepinfer doctor ascend; or choose --backend cpu",
            details={"backend": NAME, "vendor": "torch-npu"},
        ) from exc
    return torch.get_device_module(DEVICE)


def _device(module: Any, text: str | None) -> torch.device:
    count = module.device_count() if module.is_available() else 0
    if not count:
        raise BackendUnavailable(
            "torch_npu finds no device here",
            reason="the runtime shows none to this process",
            remedy="deepinfer doctor ascend says what is missing; or choose --backend cpu",
            details={"backend": NAME},
        )
    try:
        device = torch.device(text or DEVICE)
    except RuntimeError:
        device = torch.device("meta")
    index = module.current_device() if device.index is None else device.index
    if device.type != DEVICE or index >= count:
        raise ConfigError(
            f"device '{text}' does not belong to backend 'ascend'",
            reason=f"its devices are {', '.join(f'{DEVICE}:{i}' for i in range(count))}",
            remedy="choose one of them, or leave the device unset",
        )
    return torch.device(DEVICE, index)
