"""Two runs of each op of a step on the same inputs are equal bit for bit (class R0, ``spec/kernels.md`` 1.4)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from deepinfer_core.conformance.backend.steps import step_calls
from deepinfer_core.conformance.repeats import compare_bits, run_twice

pytestmark = pytest.mark.level("smoke")


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


def _copied(result: Any) -> Any:
    import copy

    return copy.deepcopy(result)
