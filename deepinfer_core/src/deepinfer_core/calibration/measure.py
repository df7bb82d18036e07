"""Run an engine over planned steps and note how long each took.

The scheduler cuts a long prompt by a time budget. Here that is the tool: with a model of nothing but a time for each
row, the budget is a chunk size, and changing the model between two steps gives every chunk of a plan its size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from attrs import define, field, frozen

from deepinfer_core.calibration.plan import DECODE_STEPS, Batch
from deepinfer_core.errors import EngineError

RULER_NS = 1 << 30
"""Time budget of a prefill step while measuring (``prefill_step_ns`` of the core)."""

Run = Callable[[list[list[int]], int], None]
"""Prompts and the tokens to generate for each; runs them to their end."""


@frozen
class Point:
    """A measured step: ``n`` requests with ``q`` rows each, whose last position is ``end - 1``."""

    kind: str
    n: int
    q: int
    end: int
    ns: int


@define(eq=False)
class Stopwatch:
    """A step observer. Before each step it sets the next planned chunk, and notes what the step was when it is over."""

    core: Any = None
    """Set once the engine that this observes is made."""
    chunks: list[int] = field(factory=list)
    seen: list[tuple[str, int, int, int]] = field(factory=list)
    """(kind, requests, tokens, ns) of the steps so far."""

    def begin(self, chunks: Sequence[int] = ()) -> None:
        self.seen = []
        self.chunks = list(chunks)
        self._next()

    def step(self, kind: str, num_reqs: int, num_tokens: int, seconds: float) -> None:
        self.seen.append((kind, num_reqs, num_tokens, max(1, round(seconds * 1e9))))
        self._next()

    def _next(self) -> None:
        from deepinfer_native import CostModel  # loaded only where a target is set

        self.core.set_cost_model(CostModel(row_ns=RULER_NS / self.chunks.pop(0)) if self.chunks else CostModel())


def measure(watch: Stopwatch, run: Run, chunks: Sequence[int], batches: Sequence[Batch], passes: int) -> list[Point]:
    """The points of a plan, each the fastest of ``passes`` runs: what is slower waited for something else.

    Raises EngineError when a step came out otherwise than planned.
    """
    run([prompt_of(8, 0)], 2)  # first calls allocate and compile
    best: dict[tuple[str, int, int, int], int] = {}
    for seed in range(1, passes + 1):
        watch.begin(chunks)
        run([prompt_of(sum(chunks) + 1, seed)], DECODE_STEPS)
        for point in _of_chunks(watch.seen, chunks):
            _keep(best, point)
        for batch in batches:
            watch.begin()
            run([prompt_of(batch.length, seed * 100 + i) for i in range(batch.n)], DECODE_STEPS)
            for point in _of_batch(watch.seen, batch):
                _keep(best, point)
    points = [Point(*key, ns) for key, ns in best.items()]
    for kind in ("prefill", "decode"):
        if not any(p.kind == kind for p in points):
            raise EngineError(
                f"no {kind} step could be measured",
                reason=f"the steps were {watch.seen[:8]}",
                remedy="leave --target-itl-ms out, and report this",
            )
    return points


def _keep(best: dict[tuple[str, int, int, int], int], point: Point) -> None:
    key = (point.kind, point.n, point.q, point.end)
    best[key] = min(point.ns, best.get(key, point.ns))


def _of_chunks(seen: Sequence[tuple[str, int, int, int]], chunks: Sequence[int]) -> Iterator[Point]:
    end = 0
    for step, size in zip(seen, chunks, strict=False):
        kind, n, tokens, ns = step
        if (kind, n, tokens) != ("prefill", 1, size):
            raise EngineError(
                f"a chunk of {size} tokens came out as a {kind} step of {n} requests and {tokens} tokens",
                remedy="leave --target-itl-ms out, and report this",
            )
        end += size
        yield Point(kind, 1, size, end, ns)
    # The step of one token that ends the prompt also samples: it belongs to neither kind.
    for at, (kind, n, _, ns) in enumerate(seen[len(chunks) + 1 :], start=2):
        if kind == "decode" and n == 1:
            yield Point(kind, 1, 1, end + at, ns)


def _of_batch(seen: Sequence[tuple[str, int, int, int]], batch: Batch) -> Iterator[Point]:
    end = batch.length
    for kind, n, tokens, ns in seen:
        end += kind == "decode"
        # A batch that was split, or lost a request, is no point of the plan.
        if n == batch.n and tokens == (n * batch.length if kind == "prefill" else n):
            yield Point(kind, n, batch.length if kind == "prefill" else 1, end, ns)


def prompt_of(length: int, seed: int) -> list[int]:
    """Token ids that every vocabulary has, different for each seed."""
    return [3 + (seed * 31 + i * i * 7 + i) % 61 for i in range(length)]
