"""Faults of a backend apart from what its ops compute."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import attrs
from mutant import Mutant
from mutant_backends import PLUGIN

Op = Callable[..., Any]

# --- its life -----------------------------------------------------------------------------------------------------


def _close_raises(arguments: dict[str, Any]) -> None:
    close = arguments["close"]

    def raising() -> None:
        close()
        raise RuntimeError("the device is gone")

    arguments["close"] = raising


def _close_is_for_all(arguments: dict[str, Any]) -> None:
    """A library of the whole process is shut down with the first backend that is closed."""
    rms = arguments["ops"]["norm.rms"]

    def rms_of_library(x: Any, w: Any, **options: Any) -> Any:
        if _library["closed"] > 0:
            raise RuntimeError("the library is not initialised")
        return rms(x, w, **options)

    rms_of_library.__signature__ = _signature(rms)  # type: ignore[attr-defined]
    arguments["ops"]["norm.rms"] = rms_of_library
    arguments["close"] = lambda: _library.update(closed=_library["closed"] + 1)
    _library["closed"] = 0


_library = {"closed": 0}


def _event_without_wait(arguments: dict[str, Any]) -> None:
    arguments["record_event"] = object
    arguments["wait"] = _raise_no_event


def _raise_no_event(event: object) -> None:
    raise TypeError("no event")


# --- what it takes and gives --------------------------------------------------------------------------------------


def _binds(change: Callable[[Any, Any], Any]) -> Callable[[dict[str, Any]], None]:
    """``change(bound, record)`` is what ``bind_inputs`` gives."""

    def apply(arguments: dict[str, Any]) -> None:
        bind = arguments["bind_inputs"]
        arguments["bind_inputs"] = lambda record: change(bind(record), record)

    return apply


def _each_array_cloned(bound: Any, record: Any) -> Any:
    for field in bound.FIELDS:
        value = getattr(bound, field)
        if hasattr(value, "clone"):
            setattr(bound, field, value.clone())
    return bound


def _first_ratio_only(bound: Any, record: Any) -> Any:
    for field in bound.FIELDS:
        value = getattr(bound, field)
        if isinstance(value, dict) and value:
            setattr(bound, field, dict.fromkeys(value, next(iter(value.values()))))
    return bound


def _indices_as_int64(bound: Any, record: Any) -> Any:
    import torch

    for field in bound.FIELDS:
        value = getattr(bound, field)
        if hasattr(value, "dtype") and value.dtype == torch.int32:
            setattr(bound, field, value.long())
    return bound


def _record_overwritten(bound: Any, record: Any) -> Any:
    for field in record.FIELDS:
        setattr(record, field, getattr(bound, field))
    return record


def _to_host_forgets_strides(arguments: dict[str, Any]) -> None:
    to_host = arguments["to_host"]

    def flat(tensor: Any) -> Any:
        if hasattr(tensor, "as_strided") and tensor.dim() == 2 and not tensor.is_contiguous():
            tensor = tensor.as_strided(tensor.shape, (tensor.shape[1], 1))
        return to_host(tensor)

    arguments["to_host"] = flat


# --- what it says of itself ---------------------------------------------------------------------------------------


def _feature_unclaimed(arguments: dict[str, Any]) -> None:
    held = arguments["capabilities"]
    arguments["capabilities"] = attrs.evolve(held, features=held.features | {"joint_steps"})


def _capabilities_of_cpu(arguments: dict[str, Any]) -> None:
    arguments["capabilities"] = attrs.evolve(arguments["capabilities"], name="cpu")


def _emulated_unasked(arguments: dict[str, Any]) -> None:
    arguments["capabilities"] = attrs.evolve(arguments["capabilities"], emulated=True)


def _ops_of_cpu(arguments: dict[str, Any]) -> None:
    arguments["provider"] = "deepinfer-cpu"


def _guard_finds_nothing(arguments: dict[str, Any]) -> None:
    arguments["no_sync"] = contextlib.nullcontext


# --- ops in general -----------------------------------------------------------------------------------------------


def _signature(op: Op) -> Any:
    import inspect

    return inspect.signature(op)


def _wrapped(around: Callable[[Op], Op]) -> Callable[[Op], Op]:
    """The op with other code around it, under its own signature."""

    def make(op: Op) -> Op:
        changed = around(op)
        changed.__signature__ = _signature(op)  # type: ignore[attr-defined]
        return changed

    return make


def _reads_a_value(op: Op) -> Op:
    def reading(x: Any, *args: Any, **options: Any) -> Any:
        return op(x, *args, **options) if float(x.abs().max()) >= 0 else None

    return reading


def _writes_behind_its_result(op: Op) -> Op:
    """Where there is memory behind it, as in a pool."""

    def writing(*args: Any, **options: Any) -> Any:
        made = op(*args, **options)
        y = made[0]
        end = y.storage_offset() + y.numel()
        if y.untyped_storage().nbytes() > end * y.element_size():
            y.as_strided((1,), (1,), end).fill_(1)
        return made

    return writing


def _drifts(op: Op) -> Op:
    calls = []

    def drifting(*args: Any, **options: Any) -> Any:
        result = copy.deepcopy(op(*args, **options))
        calls.append(None)
        if len(calls) % 2 == 0 and result.numel():
            result.view(-1)[0] *= 1.01
        return result

    return drifting


def _knows_the_batch(op: Op) -> Op:
    """Another kernel, with other rounding, from five rows on."""

    def batched(a: Any, *args: Any, **options: Any) -> Any:
        result = op(a, *args, **options)
        return result * 1.001 if result.shape[0] > 4 else result

    return batched


def _argument_renamed(op: Op) -> Op:
    def renamed(x: Any, weight: Any, **options: Any) -> Any:
        return op(x, weight, **options)

    return renamed


# --- its module ---------------------------------------------------------------------------------------------------

_MODULE = """{top}
from deepinfer_core import hookimpl
from deepinfer_core.types import ProbeReport

ASKED = []


@hookimpl
def deepinfer_backend_create(name, device, config{default}):
    import mutant_backends

    return mutant_backends.create(name, device, config)


@hookimpl
def deepinfer_backend_probe(name, host):
    ASKED.append(name)
    {probe}
    return ProbeReport(present=True, usable=True, devices=({arch!r},), arch="cpu")
"""


def _module(*, top: str = "", probe: str = "pass", default: str = "", arch: str = "cpu") -> str:
    return _MODULE.format(top=top, probe=probe, default=default, arch=arch)


_LEAVES_A_PROCESS = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"
_BUSY = "import time; END = time.process_time() + 0.6\nwhile time.process_time() < END: pass"
_RECORDS, _PROBE, _TABLE = "backend/test_records.py", "backend/test_probe.py", "backend/test_op_table.py"
_LIFE, _ABLE, _SYNC = "backend/test_life.py", "backend/test_capabilities.py", "backend/test_sync.py"

MUTANTS = [
    Mutant(name="close_raises", change=_close_raises, caught_by=_LIFE),
    Mutant(name="close_ends_other_backends", change=_close_is_for_all, caught_by=_LIFE),
    Mutant(name="event_cannot_be_waited_for", change=_event_without_wait, caught_by=_LIFE),
    Mutant(name="bind_copies_host_memory", change=_binds(_each_array_cloned), caught_by=_RECORDS),
    Mutant(name="bind_swaps_ratios", change=_binds(_first_ratio_only), caught_by=_RECORDS),
    Mutant(name="bind_widens_indices", change=_binds(_indices_as_int64), caught_by=_RECORDS),
    Mutant(name="bind_changes_its_argument", change=_binds(_record_overwritten), caught_by=_RECORDS),
    Mutant(name="to_host_forgets_strides", change=_to_host_forgets_strides, caught_by=_RECORDS),
    Mutant(name="claim_that_is_not_there", claims=("feature:graphs",), caught_by=_ABLE),
    Mutant(name="feature_that_is_not_claimed", change=_feature_unclaimed, caught_by=_ABLE),
    Mutant(name="capabilities_of_another_backend", change=_capabilities_of_cpu, caught_by=_ABLE),
    Mutant(name="emulation_that_nobody_asked_for", change=_emulated_unasked, caught_by=_ABLE),
    Mutant(name="claimed_op_that_is_not_there", claims=("op:attn.fused_decode",), caught_by=_TABLE),
    Mutant(name="required_ops_of_cpu", change=_ops_of_cpu, arch="acme1", caught_by=_TABLE),
    Mutant(name="op_with_another_argument", op="norm.rms", make=_argument_renamed, caught_by=_TABLE),
    Mutant(name="sync_in_the_hot_path", op="norm.rms", make=_wrapped(_reads_a_value), caught_by=_SYNC),
    Mutant(name="guard_that_finds_nothing", change=_guard_finds_nothing, caught_by=_SYNC),
    Mutant(name="second_run_differs", op="gemm.dense", make=_wrapped(_drifts), caught_by="backend/test_repeats.py"),
    Mutant(
        name="writes_behind_its_result",
        op="norm.rms",
        make=_wrapped(_writes_behind_its_result),
        caught_by="backend/test_repeats.py",
        test="beside",
    ),
    Mutant(
        name="row_depends_on_its_batch",
        op="gemm.dense",
        make=_wrapped(_knows_the_batch),
        caught_by="backend/test_engine.py",
        test="alone",
    ),
    Mutant(name="torch_at_module_level", module="import torch\n" + PLUGIN, caught_by="common/test_import.py"),
    Mutant(name="slow_import", module=_module(top=_BUSY), caught_by="common/test_import.py"),
    Mutant(name="import_prints", module=_module(top="print('acme 1.0')"), caught_by="common/test_import.py"),
    Mutant(name="hook_argument_with_default", module=_module(default="=None"), caught_by="common/test_manifest.py"),
    Mutant(name="probe_prints", module=_module(probe="print('found 1 device')"), caught_by=_PROBE),
    Mutant(name="probe_writes_into_home", module=_module(probe="open('probe.log', 'w').close()"), caught_by=_PROBE),
    Mutant(name="probe_leaves_a_process", module=_module(probe=_LEAVES_A_PROCESS), caught_by=_PROBE),
    Mutant(name="probe_changes_its_mind", module=_module(probe="name = 1 / (2 - len(ASKED))"), caught_by=_PROBE),
]
