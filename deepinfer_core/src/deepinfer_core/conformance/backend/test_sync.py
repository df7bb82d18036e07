"""Nothing that launches a step waits for the device: an op that does stops the overlap of two steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from deepinfer_core.conformance.backend.steps import step_calls
from deepinfer_core.conformance.failures import fail, require_no_error, require_raises
from deepinfer_core.errors import HiddenSync

pytestmark = pytest.mark.level("smoke")


@pytest.fixture
def guard(backend: Any) -> Any:
    """``backend.no_sync``, if it has one."""
    if not callable(getattr(backend, "no_sync", None)):
        pytest.skip("not offered: no_sync")
    return backend.no_sync


def test_guard_finds_a_read_of_the_host(guard: Any, device: torch.device) -> None:
    values = torch.arange(4, device=device)
    for case, read in (
        ("item", lambda: values[1].item()),
        ("tolist", values.tolist),
        ("nonzero", values.nonzero),
        ("a branch", lambda: bool(values[1] > 0)),
    ):
        with require_raises(HiddenSync, "a read of the host is not found", case=case), guard():
            read()
    with require_no_error("a read behind the guard's end is refused"):
        values.tolist()


def test_guard_lets_launches_pass(guard: Any, device: torch.device) -> None:
    values = torch.arange(4, device=device)
    with require_no_error("what waits for nothing is refused"), guard():
        (values * 2 + 1).to(torch.float32).softmax(-1)


@pytest.mark.op("quant.cast_per_token", "norm.rms", "gemm.dense", "cache.store", "attn.sparse_prefill", "index.topk")
def test_ops_of_a_step_do_not_wait(backend: Any, guard: Any, device: torch.device, generator: torch.Generator) -> None:
    waiting = []
    for op, call in step_calls(backend, device, generator).items():
        try:
            with guard():
                call()
        except HiddenSync as exc:
            waiting.append(f"{op}: {exc.what}")
    if waiting:
        fail("ops wait for the device while a step is launched", got="; ".join(waiting))


def test_inputs_are_bound_without_waiting(backend: Any, guard: Any) -> None:
    from deepinfer_core.conformance import sample_records

    record = sample_records.filled("InputMetadataV41", 5)
    with require_no_error("bind_inputs waits for the device"), guard():
        backend.bind_inputs(record)
