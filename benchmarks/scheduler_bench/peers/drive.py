"""The comparison loop: modes decode, churn, admit and probe, a row for each measurement.

Call order: schedule n, pack n, then commit, emit and recycle of n-1; a prefill step is committed in its own call.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from time import perf_counter_ns as now
from typing import Any

import numpy as np

from ..cases import BLOCK
from .interface import Peer, PeerSettings, PeerStep

Open = Callable[[PeerSettings], Peer]
PHASES = ("schedule", "pack", "commit", "emit", "recycle")
PROMPT = 512
STALLS = 2000


def settings(seqs: int, draft: int, longest: int, blocks: int = 0, **changes: Any) -> PeerSettings:
    values: dict[str, Any] = {
        "block_size": BLOCK,
        "num_blocks": blocks or seqs * (-(-(longest + 3 * draft + 3) // BLOCK) + 1) + 2,
        "num_slots": int(1.2 * seqs) + 9,
        "max_model_len": longest,
        "max_num_batched_tokens": max(16_384, longest, seqs * (draft + 1)),
        "max_num_seqs": seqs,
        "num_draft": draft,
    }
    return PeerSettings(**{**values, **changes})


class Loop:
    """One scheduler and what is in flight."""

    def __init__(self, peer: Peer, accepted: int = 0) -> None:
        self.peer, self._accepted = peer, accepted
        self._open: Any = None
        self._rng = np.random.default_rng(5)
        self.tokens = 0

    def add(self, prompt: int, max_tokens: int) -> int:
        return self.peer.add(self._rng.integers(3, 100_000, prompt, dtype=np.int32), max_tokens)

    def step(self) -> tuple[PeerStep | None, tuple[int, ...]]:
        """(the step, nanoseconds by phase)."""
        peer = self.peer
        began = now()
        step = peer.schedule()
        scheduled = now()
        if step is None:
            self.retire()
            return None, ()
        peer.pack()
        packed = now()
        retired = self.retire()
        self._open = peer.prepare(step, self._accepted)
        if step.is_prefill:
            retired = tuple(a + b for a, b in zip(retired, self.retire(), strict=True))
        return step, (scheduled - began, packed - scheduled, *retired)

    def retire(self) -> tuple[int, ...]:
        if self._open is None:
            return 0, 0, 0
        answer, self._open = self._open, None
        peer = self.peer
        began = now()
        peer.commit(answer)
        committed = now()
        self.tokens += peer.emit()
        emitted = now()
        peer.recycle()
        return committed - began, emitted - committed, now() - emitted

    def run_out(self, limit: int = STALLS) -> bool:
        """Until nothing is left to schedule; False when that takes too long."""
        return any(self.step()[0] is None and self.step()[0] is None for _ in range(limit))


def decode(open_peer: Open, seqs: int, draft: int, accepted: int, steps: int = 400) -> dict[str, Any]:
    """Time decode steps that carry every request."""
    longest = PROMPT + (steps + 80) * (accepted + 1)
    loop = Loop(open_peer(settings(seqs, draft, longest)), accepted)
    for _ in range(seqs):
        loop.add(PROMPT, longest - PROMPT)
    for _ in range(STALLS):
        step, _ = loop.step()
        if step is not None and step.rows == seqs and not step.is_prefill:
            break
    for _ in range(20):
        loop.step()
    times = []
    for _ in range(steps):
        step, spent = loop.step()
        if step is None or step.rows != seqs or step.is_prefill:
            raise RuntimeError(f"a decode step of {seqs} requests was expected, not {step}")
        times.append(spent)
    loop.peer.close()
    return {"mode": "decode", "seqs": seqs, "k": draft, "accepted": accepted, **medians(times, seqs)}


def churn(open_peer: Open, seqs: int, steps: int = 600) -> dict[str, Any]:
    """Requests of 16 to 512 tokens come as others end; every engine call counts."""
    rng = np.random.default_rng(9)
    loop = Loop(open_peer(settings(seqs, 0, PROMPT + 512, prefill_attempt_interval=16)))
    times = []
    for i in range(steps + 100):
        for _ in range(seqs if i == 0 else int(rng.poisson(seqs / 264))):
            loop.add(PROMPT, int(rng.integers(16, 513)))
        step, spent = loop.step()
        if step is not None and i >= 100:
            times.append(spent)
    loop.peer.close()
    return {"mode": "churn", "seqs": seqs, "k": 0, **medians(times, seqs)}


def admit(open_peer: Open, prompt: int, count: int = 64) -> dict[str, Any]:
    """Microseconds to add a request, and to schedule, pack and commit its prompt."""
    loop = Loop(open_peer(settings(count, 0, prompt + 8, max_num_batched_tokens=max(65_536, prompt + 8))))
    added = []
    for _ in range(count):
        began = now()
        loop.add(prompt, 4)
        added.append(now() - began)
    spent, rows = 0, 0
    for _ in range(STALLS):
        step, times = loop.step()
        if step is None or not step.is_prefill:
            break
        spent, rows = spent + sum(times), rows + step.rows
    loop.peer.close()
    add_us = statistics.median(added) / 1e3
    return {"mode": "admit", "prompt": prompt, "add_us": round(add_us, 2), "prefill_us": round(spent / rows / 1e3, 2)}


def probe(open_peer: Open) -> Iterator[dict[str, Any]]:
    """Behaviour, not time: what is left after whole runs, after an abort between chunks, and under pressure."""
    yield {"mode": "probe", "what": "plain runs", **leak(open_peer, abort=False)}
    yield {"mode": "probe", "what": "abort between chunks", **leak(open_peer, abort=True)}
    loop = Loop(open_peer(settings(2, 0, 4 * BLOCK, blocks=5, num_slots=9)))
    for _ in range(2):
        loop.add(BLOCK + 8, 40)  # two blocks each fill the pool of four, and none of them has to grow
    loop.run_out()
    yield {"mode": "probe", "what": "full pool, nobody grows", "preempted": loop.peer.preempted()}
    loop.peer.close()
    try:
        row = decode(open_peer, 2048, 5, 5, steps=4)
        yield {"mode": "probe", "what": "12,288 tokens in a step", "works": True, "total_us": row["total_us"]}
    except Exception as error:  # whatever a foreign scheduler raises is the finding
        yield {"mode": "probe", "what": "12,288 tokens in a step", "works": False, "error": f"{error}"[:200]}


def leak(open_peer: Open, abort: bool) -> dict[str, Any]:
    """Units that are missing after everything has ended."""
    loop = Loop(open_peer(settings(4, 0, 4096, max_num_batched_tokens=4096)))
    before = loop.peer.free()
    loop.add(600, 4)
    loop.run_out()
    if abort:
        name = loop.add(4000, 4)
        loop.add(4000, 4)
        loop.step()
        loop.peer.abort([name])
    ended = loop.run_out()
    after = loop.peer.free()
    loop.peer.close()
    return {"ended": ended, "missing_blocks": before[0] - after[0], "missing_slots": before[1] - after[1]}


def medians(times: list[tuple[int, ...]], seqs: int) -> dict[str, Any]:
    table = np.array(times, float) / 1e3
    at = {name: round(float(np.median(table[:, i])), 2) for i, name in enumerate(PHASES)}
    total = table.sum(axis=1)
    core = total - table[:, PHASES.index("pack")]
    return {
        "us": at,
        "total_us": round(float(np.median(total)), 2),
        "p99_us": round(float(np.percentile(total, 99)), 2),
        "core_us_a_seq": round(float(np.median(core)) / seqs, 4),
    }
