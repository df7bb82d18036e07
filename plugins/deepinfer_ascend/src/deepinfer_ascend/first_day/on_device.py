"""What a backend needs of a device beside its ops, each tried by itself: tensors, copies, events, graphs, memory.

Each answers in a few words, or with its error, and the next is tried all the same. ``--emulate`` tries what an
emulation has.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

import torch

from deepinfer_ascend.chip import CUBE_CORES, VECTOR_CORES
from deepinfer_ascend.device.faults import typed
from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import GraphCaptureError

FAR_TOO_MUCH = 1 << 45
"""Bytes that no device has: to see the words of the error."""


def chip(backend: Any) -> str:
    """Name and sizes, beside those that the code is written for."""
    if backend.capabilities.emulated:
        return f"{CUBE_CORES} cube and {VECTOR_CORES} vector cores are assumed"
    module = torch.get_device_module(backend.device.type)
    record = module.get_device_properties(backend.device)
    cores = (getattr(record, "cube_core_num", CUBE_CORES), getattr(record, "vector_core_num", VECTOR_CORES))
    name = module.get_device_name(backend.device)
    told = f"{name}: {record.total_memory >> 20:,} MiB, {cores[0]} cube and {cores[1]} vector cores"
    if cores != (CUBE_CORES, VECTOR_CORES):
        raise ValueError(f"{told}; chip.py has {CUBE_CORES} and {VECTOR_CORES}")
    return told


def copies(backend: Any) -> str:
    """Values to the device and back, of each type that a step moves."""
    for dtype in (torch.float32, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.bool):
        there = torch.arange(4096).remainder(2).to(dtype).to(backend.device)
        back = backend.to_host(there)
        if back[:4].astype(int).tolist() != [0, 1, 0, 1]:
            raise ValueError(f"{dtype} came back as {back[:4].tolist()}")
    return "six types came back"


def events(backend: Any) -> str:
    """Work that an event waits for is done."""
    if not hasattr(backend, "record_event"):
        return "none: results are ready when a call returns"
    x = torch.ones(1 << 20, device=backend.device)
    for _ in range(8):
        x = x + 1
    backend.wait(backend.record_event())
    return f"the sum behind it is {float(x[0].cpu()):g}"


def graphs(backend: Any) -> str:
    """Two additions, launched again after their input changed."""
    x, y = torch.ones(8, device=backend.device), torch.zeros(8, device=backend.device)
    replay = backend.capture(lambda: y.copy_(x + 1 + 1))
    x.fill_(5)
    replay()
    found = float(y[0].cpu())
    if found != 7:
        raise ValueError(f"a replay gives {found:g} where 7 is right")
    return "a replay reads what is there now"


def refused_graph(backend: Any) -> str:
    """A call that reads a value cannot be captured, and the device goes on behind it."""
    if backend.capabilities.emulated:
        return "an emulation captures any call"
    x = torch.ones(8, device=backend.device)
    try:
        backend.capture(lambda: x[0].item())
    except GraphCaptureError as exc:
        words = exc.reason
    else:
        raise ValueError("a call that waits for the device was captured")
    return f"refused: {words}; afterwards {float((x + 1)[0].cpu()):g} is computed"


def memory(backend: Any) -> str:
    """The words of an allocation that fails, and whether they are known."""
    try:
        torch.empty(FAR_TOO_MUCH, dtype=torch.uint8, device=backend.device)
    except Exception as exc:
        known = typed("memory", exc)
        first = str(exc).partition("\n")[0]
        if known is None and not backend.capabilities.emulated:
            raise ValueError(f"device/faults.py does not know: {first}") from exc
        return f"told as {known.code if known else 'is'}: {first}"
    raise ValueError(f"{FAR_TOO_MUCH:,} bytes were allocated")


TRIED: tuple[Callable[[Any], str], ...] = (chip, copies, events, graphs, refused_graph, memory)


def attempt(call: Callable[[Any], str], backend: Any) -> dict[str, str]:
    try:
        return {"tried": call.__name__, "state": "passed", "detail": call(backend)}
    except Exception as exc:
        return {"tried": call.__name__, "state": "failed", "detail": f"{type(exc).__name__}: {exc}"}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--emulate", action="store_true")
    parser.add_argument("--device")
    options = parser.parse_args()
    from deepinfer_ascend.backend import create

    backend = create(options.device, EngineConfig(backend="ascend", emulate=options.emulate))
    found = [attempt(call, backend) for call in TRIED]
    backend.close()
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return int(any(item["state"] != "passed" for item in found))


if __name__ == "__main__":
    raise SystemExit(main())
