"""A few steps under the profiler, after everything that is measured: once one was active, short steps stay slower."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from deepinfer_bench.busy import profiled

TOP = 15
QUIET = "99"
"""Log level of the profiler's library, which else writes two lines of its own to standard error for each use."""
HOST_MEANING = (
    "outside_model_share: step time outside the calls of model and sampler (scheduling, packing, commit, text, "
    "the loop); this backend computes within those calls, so its device has no idle time of its own"
)
DEVICE_MEANING = (
    "device_idle_share: 1 - time in which anything runs on the device, by the profiler, over the median step of the "
    "window without it; device_idle_share_profiled: the same over the profiled steps"
)


def profile_steps(device_type: str, steps: int, work: Callable[[], object], step_s: float | None) -> dict[str, Any]:
    """What ran in ``steps`` steps, the longest first.

    :param step_s: Median step of the window, in seconds; None: there was none.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", QUIET)
    if device_type != "cuda":
        return {"steps": steps, "device_idle_share": None, "longest": _host_ops(work, steps), "meaning": HOST_MEANING}
    busy = profiled(work)
    per_step = busy.busy_us / steps * 1e-6
    return {
        "steps": steps,
        "device_busy_ms": per_step * 1e3,
        "device_idle_share": None if not step_s else max(0.0, 1 - per_step / step_s),
        "device_idle_share_profiled": busy.idle,
        "launches_per_step": busy.kernels / steps,
        "longest": [{"name": n, "us_per_step": us / steps, "calls": calls} for n, us, calls in busy.top[:TOP]],
        "meaning": DEVICE_MEANING,
    }


def _host_ops(work: Callable[[], object], steps: int) -> list[dict[str, Any]]:
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        work()
    events = sorted(profile.key_averages(), key=lambda event: -event.self_cpu_time_total)
    return [
        {"name": event.key, "us_per_step": event.self_cpu_time_total / steps, "calls": event.count}
        for event in events[:TOP]
    ]
