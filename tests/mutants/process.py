"""Faults of a backend that show beside its results: what it keeps, shares, leaves behind, or rounds away on the way."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from general import _binds, _module, _wrapped
from mutant import Mutant
from torch import Tensor

Op = Callable[..., Any]
_KEPT: list[Any] = []


def gives_one_buffer_for_all(op: Op) -> Op:
    """A workspace that is made once and handed out by every call."""
    held: dict[Any, Tensor] = {}

    def kept(*args: Any, **options: Any) -> Any:
        result = op(*args, **options)
        return held.setdefault((result.shape, result.dtype), result.clone()).copy_(result)

    return kept


def draws_from_the_global_generator(op: Op) -> Op:
    def draw(*args: Any, **options: Any) -> Any:
        torch.rand(1)
        return op(*args, **options)

    return draw


def draw_is_biased(op: Op) -> Op:
    """The first token is a thousandth more probable than it should be."""

    def draw(logprobs: Tensor, *args: Any, **options: Any) -> Any:
        biased = logprobs.clone()
        biased[:, :1] += 1e-3
        return op(biased, *args, **options)

    return draw


def mask_ends_with_the_last_whole_word(op: Op) -> Op:
    def mask(logits: Tensor, *args: Any, **options: Any) -> Any:
        whole = logits.shape[1] // 32 * 32
        kept = logits[:, whole:].clone()
        op(logits, *args, **options)
        if whole > 2000:
            logits[:, whole:] = kept
        return logits

    return mask


def _negative_is_absent(bound: Any, record: Any) -> Any:
    for field in bound.FIELDS:
        value = getattr(bound, field)
        if isinstance(value, Tensor) and value.dtype == torch.int32 and bool((value < -1).any()):
            setattr(bound, field, value.clamp(min=-1))
    return bound


def _seed_loses_its_top_bit(bound: Any, record: Any) -> Any:
    for field in bound.FIELDS:
        value = getattr(bound, field)
        if isinstance(value, Tensor) and value.dtype == torch.uint64:
            setattr(bound, field, (value.view(torch.int64) & (2**63 - 1)).view(torch.uint64))
    return bound


def _host_buffer_is_reused(arguments: dict[str, Any]) -> None:
    to_host, held = arguments["to_host"], {}

    def reading(tensor: Any) -> Any:
        array = to_host(tensor)
        buffer = held.setdefault((array.shape, array.dtype), array.copy())
        buffer[...] = array
        return buffer

    arguments["to_host"] = reading


def _thread_goes_on(arguments: dict[str, Any]) -> None:
    threading.Thread(target=threading.Event().wait, daemon=True).start()


def _file_stays_open(arguments: dict[str, Any]) -> None:
    _KEPT.append(open("/dev/null"))  # noqa: SIM115


def _process_goes_on(arguments: dict[str, Any]) -> None:
    _KEPT.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(20)"]))


def _seeds_the_process(arguments: dict[str, Any]) -> None:
    torch.manual_seed(len(_KEPT))
    _KEPT.append(None)


_CLEAN_ENVIRONMENT = (
    "import subprocess, sys; "
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(20)'], env={}, start_new_session=True)"
)
_THREAD = "import threading, time; threading.Thread(target=time.sleep, args=(9,), daemon=True).start()"
_RECORDS, _REPEATS, _LIFE = "backend/test_records.py", "backend/test_repeats.py", "backend/test_life.py"
_PROBE, _SAMPLING = "backend/test_probe.py", "backend/test_sampling.py"

MUTANTS = [
    Mutant(
        name="buffer_given_out_twice",
        op="gemm.dense",
        make=_wrapped(gives_one_buffer_for_all),
        caught_by=_REPEATS,
        test="memory",
    ),
    Mutant(
        name="draw_uses_the_global_generator",
        op="sample.draw",
        make=_wrapped(draws_from_the_global_generator),
        caught_by=_REPEATS,
    ),
    Mutant(name="draw_biased_by_a_thousandth", op="sample.draw", make=draw_is_biased, caught_by=_SAMPLING),
    Mutant(
        name="mask_of_a_ragged_vocabulary",
        op="sample.mask",
        make=mask_ends_with_the_last_whole_word,
        caught_by=_SAMPLING,
    ),
    Mutant(name="bind_clamps_negative_values", change=_binds(_negative_is_absent), caught_by=_RECORDS),
    Mutant(name="bind_drops_the_top_bit_of_seeds", change=_binds(_seed_loses_its_top_bit), caught_by=_RECORDS),
    Mutant(name="to_host_reuses_its_buffer", change=_host_buffer_is_reused, caught_by=_RECORDS),
    Mutant(name="close_leaves_a_thread", change=_thread_goes_on, caught_by=_LIFE),
    Mutant(name="close_leaves_a_file", change=_file_stays_open, caught_by=_LIFE),
    Mutant(name="close_leaves_a_process", change=_process_goes_on, caught_by=_LIFE),
    Mutant(name="backend_seeds_the_process", change=_seeds_the_process, caught_by=_LIFE),
    Mutant(
        name="probe_leaves_a_temporary_file",
        module=_module(probe="import tempfile; tempfile.mkstemp()"),
        caught_by=_PROBE,
    ),
    Mutant(name="probe_leaves_a_stranger", module=_module(probe=_CLEAN_ENVIRONMENT), caught_by=_PROBE),
    Mutant(name="import_starts_a_thread", module=_module(top=_THREAD), caught_by="common/test_import.py"),
]
