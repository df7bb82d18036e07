"""What this device reaches in this run: a copy and a matrix product, against which steps are held."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from attrs import frozen

from deepinfer_core.types import OpFloor

COPY_BYTES = {"cuda": 1 << 30, "cpu": 256 << 20}
"""Of the array that is copied: several times any cache."""
SQUARE = {"cuda": 8192, "cpu": 1024}
PARTS = (1, 2, 4)
REPEATS = 7
WARM_SECONDS = 0.3
"""An idle device runs at a fraction of its clock."""


@frozen
class Ceilings:
    """Bytes a second of a copy, read plus written, and FLOP a second of a product of two squares in ``dtype``."""

    copy: float
    matmul: float
    dtype: str

    def floor_s(self, part: OpFloor) -> float:
        """Seconds that no implementation of an op can beat by much."""
        return max(part.num_bytes / self.copy, part.flop / self.matmul)

    def as_record(self) -> dict[str, Any]:
        return {"copy_bytes_per_s": self.copy, "matmul_flop_per_s": self.matmul, "matmul_dtype": self.dtype}


def measure_ceilings(device: Any, clock: Callable[[], float] = time.perf_counter) -> Ceilings | None:
    """The best of a few copies and products on ``device``, in about a second. bf16 on a device with tensor cores, f32
    on a processor, in which backend ``cpu`` computes.

    Beside an engine there may be little memory left: smaller arrays are tried, and None says that none fits.
    """
    import torch

    for part in PARTS:
        try:
            return _measured(torch.device(device), part, clock)
        except torch.OutOfMemoryError:
            pass
        finally:
            if torch.device(device).type == "cuda":
                torch.cuda.empty_cache()  # the engine's own allocations go on as if nothing had been here
    return None


def _measured(where: Any, part: int, clock: Callable[[], float]) -> Ceilings:
    """With arrays of ``1 / part`` of their size."""
    import torch

    kind = "cuda" if where.type != "cpu" else "cpu"
    dtype = torch.float32 if kind == "cpu" else torch.bfloat16
    wait = torch.cuda.synchronize if where.type == "cuda" else _nothing

    side, copied = SQUARE[kind] // part, COPY_BYTES[kind] // part
    a, b = (torch.randn(side, side, device=where).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    matmul = 2 * side**3 / _best(lambda: torch.matmul(a, b, out=out), wait, clock)
    source = torch.zeros(copied // 4, dtype=torch.int32, device=where)
    target = torch.empty_like(source)
    copy = 2 * copied / _best(lambda: target.copy_(source), wait, clock)
    return Ceilings(copy, matmul, str(dtype).removeprefix("torch."))


def _best(call: Callable[[], object], wait: Callable[[], object], clock: Callable[[], float]) -> float:
    until = clock() + WARM_SECONDS
    while True:
        call()
        wait()
        if clock() >= until:
            break
    times = []
    for _ in range(REPEATS):
        begin = clock()
        call()
        wait()
        times.append(clock() - begin)
    return min(times)


def _nothing() -> None:
    pass


def roofline(parts: Iterable[OpFloor], ceilings: Ceilings, step_s: float) -> dict[str, float]:
    """How near a step of ``step_s`` seconds comes to the least that it must do.

    ``floor_share`` is the sum over ops of the larger of bytes over the copy rate and FLOP over the matmul rate, over
    the step; the other two are the bytes alone and the FLOP alone.
    """
    listed = list(parts)
    num_bytes, flop = sum(p.num_bytes for p in listed), sum(p.flop for p in listed)
    floor = sum(map(ceilings.floor_s, listed))
    return {
        "bytes": num_bytes,
        "flop": flop,
        "floor_ms": floor * 1e3,
        "floor_share": floor / step_s,
        "copy_share": num_bytes / ceilings.copy / step_s,
        "matmul_share": flop / ceilings.matmul / step_s,
    }
