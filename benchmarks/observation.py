"""What observing costs a step: the host time between the commit of a step and the next one.

    python benchmarks/observation.py [--steps N] [--json FILE]

No model runs. The engine is that of the shipped checkpoint; its meter is told of N decode steps of 64 requests, as the
step loop does behind each commit. Nobody observes (``off``), an observer that does nothing (``empty``, which is the
price of what it is told), and each part of deepinfer-metrics. Microseconds of processor time per step, median of 7
rounds.
"""  # fmt: skip

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import process_time_ns
from typing import Any

from startup import machine

from deepinfer_core import LLM
from deepinfer_core.observation.watch import PHASES, Watch
from deepinfer_core.records import StepKind

ROUNDS = 7
PARTS = ("off", "empty", "metrics", "step_log", "traces")


class Empty:
    """An observer that does nothing."""

    def ready(self, engine: Any) -> None: ...
    def step(self, step: Any) -> None: ...
    def ended(self, request: Any) -> None: ...
    def close(self) -> None: ...


class Record:
    """What the meter reads of a step."""

    kind, is_prefill, num_reqs, num_tokens, started_ns = int(StepKind.DECODE), False, 64, 64, 0


def observer(part: str) -> Any:
    if part == "metrics":
        from deepinfer_metrics.serving import Serving

        return Serving.start("127.0.0.1", 0, is_public=False)
    if part == "step_log":
        from deepinfer_metrics.step_log import StepLog

        return StepLog(io.StringIO(), 100)
    if part == "traces":
        from deepinfer_metrics.traces import Traces

        return Traces.open(os.devnull)
    return Empty()


@contextmanager
def watched(llm: LLM, part: str) -> Iterator[None]:
    engine = llm.built.engine
    if part == "off":
        yield
        return
    made = observer(part)
    Watch(engine, [made])
    yield
    engine.meter.observers.clear()
    engine.emitter.listeners.clear()
    made.close()


def microseconds(llm: LLM, steps: int) -> float:
    """Of one call of the meter."""
    committed, record, times = llm.built.engine.meter.committed, Record(), llm.times
    begin = process_time_ns()  # the machine may be busy
    for _ in range(steps):
        for phase in PHASES:  # each took a while; this is part of every figure
            setattr(times, phase, getattr(times, phase) + 1000)
        committed(record, begin)  # type: ignore[arg-type]  # it reads no more
    return (process_time_ns() - begin) / steps / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    times: dict[str, list[float]] = {part: [] for part in PARTS}
    with LLM(backend="cpu") as llm:
        for _ in range(ROUNDS):  # in turns: a busy moment touches all
            for part in PARTS:
                with watched(llm, part):
                    times[part].append(microseconds(llm, arguments.steps))
    medians = {part: round(statistics.median(values), 2) for part, values in times.items()}
    print(json.dumps({"machine": machine(), "us_per_step": medians}, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine(), "us_per_step": medians}, indent=1) + "\n")


if __name__ == "__main__":
    main()
