"""Two runs of each op of a step on the same inputs are equal bit for bit (class R0, ``spec/kernels.md`` 1.4)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from deepinfer_core.conformance.backend.steps import step_calls
from deepinfer_core.conformance.failures import require
from deepinfer_core.conformance.guarded_memory import GuardedMemory
from deepinfer_core.conformance.process_state import changed_settings, process_settings
from deepinfer_core.conformance.repeats import compare_bits, run_twice, walk

pytestmark = pytest.mark.level("smoke")
WRITING = ("cache.store",)
"""Ops whose result lies in memory that they are given."""


def test_ops_of_a_step_repeat_themselves(backend: Any, device: torch.device, generator: torch.Generator) -> None:
    for op, call in step_calls(backend, device, generator).items():
        run_twice(call, op=op)


def test_ops_of_a_step_repeat_themselves_with_others_between(
    backend: Any, device: torch.device, generator: torch.Generator
) -> None:
    """A result must not hang on what ran before, or on memory that it left."""
    calls = step_calls(backend, device, generator)
    first = {op: _copied(call()) for op, call in calls.items()}
    for op in reversed(list(calls)):
        compare_bits(first[op], _copied(calls[op]()), "a run behind other ops differs", op=op)


def test_results_of_two_calls_do_not_share_memory(
    backend: Any, device: torch.device, generator: torch.Generator
) -> None:
    """A result is still read when the op is called again: a buffer that the op keeps may not be given out twice."""
    for op, call in step_calls(backend, device, generator).items():
        if op in WRITING:
            continue
        first = call()
        kept = _copied(first)
        for _, tensor in walk(call()):
            if isinstance(tensor, torch.Tensor) and tensor.numel():
                tensor.view(torch.uint8).fill_(0x5A) if tensor.is_contiguous() else tensor.zero_()
        compare_bits(kept, first, "a second call overwrites the result of the first", op=op)


def test_ops_of_a_step_write_nothing_beside_what_they_make(
    backend: Any, device: torch.device, generator: torch.Generator
) -> None:
    """What lies behind a result belongs to somebody else; a sanitizer cannot see that in memory that torch keeps."""
    with GuardedMemory() as memory:
        calls = step_calls(backend, device, generator)
        memory.verify(op="preparation")
        for op, call in calls.items():
            call()
            memory.verify(op=op)


def test_ops_of_a_step_leave_the_settings_of_the_process_alone(
    backend: Any, device: torch.device, generator: torch.Generator
) -> None:
    """The engine, and other backends, live in the same process."""
    for op, call in step_calls(backend, device, generator).items():
        before = process_settings()
        call()
        changed = changed_settings(before)
        require(not changed, "an op changes a setting of the process", op=op, got=changed)


def _copied(result: Any) -> Any:
    import copy

    return copy.deepcopy(result)
