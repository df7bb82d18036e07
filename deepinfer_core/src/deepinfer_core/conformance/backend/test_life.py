"""A backend is created, used, and closed (``interfaces.Backend``)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from deepinfer_core.conformance.failures import require, require_equal, require_no_error, require_raises
from deepinfer_core.conformance.process_state import changed_settings, held, process_settings
from deepinfer_core.conformance.repeats import compare_bits
from deepinfer_core.conformance.subject import Subject
from deepinfer_core.errors import DeepInferError
from deepinfer_core.interfaces import Backend
from deepinfer_core.plugins.hooks import Hooks

pytestmark = [pytest.mark.level("smoke"), pytest.mark.hook("deepinfer_backend_create")]


def test_backend_implements_the_protocol(backend: Any, subject: Subject) -> None:
    require(isinstance(backend, Backend), "the backend lacks members of the protocol Backend")
    require_equal(backend.name, subject.name, "the backend has another name than its entry point")
    require_no_device_twice(backend)


def test_events_come_in_pairs(backend: Any) -> None:
    """``record_event`` without ``wait`` would be an end that nobody can wait for."""
    offered = [name for name in ("record_event", "wait") if callable(getattr(backend, name, None))]
    require(len(offered) != 1, "record_event and wait are offered together or not at all", got=offered)
    if offered:
        with require_no_error("an event cannot be waited for"):
            backend.wait(backend.record_event())


def test_device_that_does_not_exist_is_refused(subject: Subject, hooks: Hooks) -> None:
    with require_raises(DeepInferError, "an unknown device is taken"):
        hooks.backend_create(subject.record, "no-such-device:7", hooks.manager.config).close()


def test_close_twice_is_one_close(subject: Subject, hooks: Hooks) -> None:
    made = hooks.backend_create(subject.record, None, hooks.manager.config)
    with require_no_error("close() raises"):
        made.close()
    with require_no_error("a second close() raises; closing is idempotent"):
        made.close()


def test_close_leaves_other_backends_alone(backend: Any, device: torch.device, subject: Subject, hooks: Hooks) -> None:
    """Engines of one process have a backend each."""
    x = (torch.arange(64.0).reshape(4, 16) / 7).to(device)
    weight = torch.ones(16, device=device)
    with require_no_error("closing one backend breaks another"):
        before = backend.ops["norm.rms"](x, weight, eps=1e-6)
        hooks.backend_create(subject.record, None, hooks.manager.config).close()
        after = backend.ops["norm.rms"](x, weight, eps=1e-6)
    compare_bits(before, after, "closing one backend changes what another computes", op="norm.rms")


def test_backend_behind_a_closed_one_computes_the_same(device: torch.device, subject: Subject, hooks: Hooks) -> None:
    x = (torch.arange(64.0).reshape(4, 16) / 7).to(device)
    weight = torch.ones(16, device=device)
    results = []
    for _ in range(2):
        made = hooks.backend_create(subject.record, None, hooks.manager.config)
        with require_no_error("a backend that is created behind a closed one does not work"):
            results.append(made.ops["norm.rms"](x, weight, eps=1e-6))
        made.close()
    compare_bits(results[0], results[1], "a backend behind a closed one computes something else", op="norm.rms")


def test_close_gives_back_threads_files_and_processes(subject: Subject, hooks: Hooks) -> None:
    """The first backend of a process may start what stays; a further one that is closed leaves nothing more."""
    for _ in range(2):
        hooks.backend_create(subject.record, None, hooks.manager.config).close()
    before = held()
    for _ in range(4):
        hooks.backend_create(subject.record, None, hooks.manager.config).close()
    more = {what: count for what, count in (held() - before).items() if count >= 4}
    require(not more, "four backends were made and closed, and something of each is left", got=more)


def test_life_of_a_backend_leaves_the_settings_of_the_process_alone(subject: Subject, hooks: Hooks) -> None:
    """Random numbers, the default dtype and the environment belong to everybody in the process."""
    before = process_settings()
    hooks.backend_create(subject.record, None, hooks.manager.config).close()
    changed = changed_settings(before)
    require(not changed, "making and closing a backend changes settings of the process", got=changed)


def require_no_device_twice(backend: Any) -> None:
    """The device's type is said by the device and by the capabilities."""
    __tracebackhide__ = True
    kind = torch.device(backend.device).type
    require_equal(backend.capabilities.device_type, kind, "device and capabilities.device_type differ")
