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

Run = Callable[..., None]
"""``run(prompts, tokens)`` generates ``tokens`` for each prompt, to their end; with ``replay_mode="off"`` the decoder
half runs every row, whatever the engine's mode is."""


@frozen
class Point:
    """A measured step: ``n`` requests with ``q`` rows each, whose last position is ``end - 1``.

    ``full_len``: tokens of the prompt, if the decoder half leaves rows of it out; 0: it runs all of them.
    """

    kind: str
    n: int
    q: int
    end: int
    ns: int
    full_len: int = 0


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


def measure(
    watch: Stopwatch, run: Run, chunks: Sequence[int], batches: Sequence[Batch], passes: int, keep: int = 0
) -> list[Point]:
    """The points of a plan, each the fastest of ``passes`` runs: what is slower waited for something else.

    :param keep: Rows of a prompt that the decoder half runs in this engine; 0: all. The long prompt then runs both
        ways, so that each half's share of a row is seen.
    :raises EngineError: a step came out otherwise than planned.
    """
    run([prompt_of(8, 0)], 2)  # first calls allocate and compile
    best: dict[tuple[str, int, int, int, int], int] = {}
    length = sum(chunks) + 1
    for seed in range(1, passes + 1):
        for full_len in (0, length) if keep else (0,):
            watch.begin(chunks)
            mode = {"replay_mode": "off"} if keep and not full_len else {}
            run([prompt_of(length, seed)], DECODE_STEPS, **mode)
            for point in _of_chunks(watch.seen, chunks, full_len):
                _keep(best, point)
        for batch in batches:
            watch.begin()
            run([prompt_of(batch.length, seed * 100 + i) for i in range(batch.n)], DECODE_STEPS)
            for point in _of_batch(watch.seen, batch, bool(keep)):
                _keep(best, point)
    points = [Point(*key[:4], ns, key[4]) for key, ns in best.items()]
    for kind in ("prefill", "decode"):
        if not any(p.kind == kind for p in points):
            raise EngineError(
                f"no {kind} step could be measured",
                reason=f"the steps were {watch.seen[:8]}",
                remedy="leave --target-itl-ms out, and report this",
            )
    return points


def _keep(best: dict[tuple[str, int, int, int, int], int], point: Point) -> None:
    key = (point.kind, point.n, point.q, point.end, point.full_len)
    best[key] = min(point.ns, best.get(key, point.ns))


def _of_chunks(seen: Sequence[tuple[str, int, int, int]], chunks: Sequence[int], full_len: int) -> Iterator[Point]:
    end = 0
    for step, size in zip(seen, chunks, strict=False):
        kind, n, tokens, ns = step
        if (kind, n, tokens) != ("prefill", 1, size):
            raise EngineError(
                f"a chunk of {size} tokens came out as a {kind} step of {n} requests and {tokens} tokens",
                remedy="leave --target-itl-ms out, and report this",
            )
        end += size
        yield Point(kind, 1, size, end, ns, full_len)
    # The step of one token that ends the prompt also samples: it belongs to neither kind.
    for at, (kind, n, _, ns) in enumerate(seen[len(chunks) + 1 :], start=2):
        if kind == "decode" and n == 1:
            yield Point(kind, 1, 1, end + at, ns)


def _of_batch(seen: Sequence[tuple[str, int, int, int]], batch: Batch, is_bounded: bool) -> Iterator[Point]:
    end = batch.length
    for kind, n, tokens, ns in seen:
        end += kind == "decode"
        # A batch that was split, or lost a request, is no point of the plan.
        if n == batch.n and tokens == (n * batch.length if kind == "prefill" else n):
            is_prefill = kind == "prefill"
            full_len = batch.length if is_prefill and is_bounded else 0
            yield Point(kind, n, batch.length if is_prefill else 1, end, ns, full_len)


def prompt_of(length: int, seed: int) -> list[int]:
    """Token ids that every vocabulary has, different for each seed."""
    return [3 + (seed * 31 + i * i * 7 + i) % 61 for i in range(length)]
