"""One rank of a data-parallel group over a fake device, and a reducer that joins ranks of one process by threads.

The fake device samples a token that depends on nothing but the request and its length, so that a run is the same for
every order of steps. Each rank has its own random traffic: bursts, long pauses, prompts that need several chunks.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from deepinfer_contracts import SamplerOutput, StepKind, StepMode
from deepinfer_core.errors import GroupError
from deepinfer_core.step_choice import GroupChooser
from deepinfer_native import Core, CoreConfig

VOCAB = 50
STOP = 3


def dp_config(size: int, **changes: Any) -> CoreConfig:
    values: dict[str, Any] = {
        "block_size": 4,
        "num_blocks": 40,
        "num_swa_slots": 8,
        "num_state_slots": 8,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 24,
        "max_model_len": 60,
        "vocab_size": VOCAB,
        "window": 8,
        "ratios_sparse": (1, 2),
        "chunk_align": 4,
        "max_chunk": 12,
        "prefill_interval_all": 3,
        "prefill_interval_any": 7,
        "validation": "full",
        "dp_size": size,
    }
    return CoreConfig(**{**values, **changes})


class Rank:
    """A core, a chooser, and requests that come at random. ``trace`` has one entry for each step of the group."""

    def __init__(self, reducer: Any, seed: int, *, busy: float = 0.1, chooser: Any = None, **changes: Any) -> None:
        self.core = Core(dp_config(reducer.size, **changes))
        self.chooser = chooser or GroupChooser(reducer, self.core)
        self.random = random.Random(seed)
        self.busy = busy
        self.open: list[tuple[int, int, int, list[int]]] = []  # group step, step id, kind, rows' query lengths
        self.ended: dict[int, int] = {}  # uid -> terminal events
        self.submitted: list[int] = []
        self.trace: list[tuple[int, int, int, int]] = []  # kind, rows, d after the step, unfinished before it

    def submit(self) -> None:
        r = self.random
        prompt = [r.randrange(VOCAB) for _ in range(r.choice([1, 4, 9, 30, 55]))]
        uid = self.core.submit(prompt, max_tokens=r.choice([1, 3, 20]), stop_ids=[STOP])
        self.submitted.append(uid)

    def traffic(self) -> None:
        r = self.random
        if r.random() < self.busy:
            for _ in range(r.choice([1, 1, 3])):
                self.submit()
        if self.submitted and r.random() < self.busy / 8:
            self.core.abort([r.choice(self.submitted)])

    def sampled(self, kind: int, lengths: list[int]) -> SamplerOutput:
        n, k, r = len(lengths), self.core.config.num_draft, self.random
        out = SamplerOutput(
            sampled_ids=np.array([r.randrange(VOCAB) for _ in range(n)], np.int32),
            sampled_logprob=np.zeros(n, np.float32),
            row_status=np.zeros(n, np.int8),
        )
        if k:
            out.draft_ids = np.array([[r.randrange(VOCAB) for _ in range(k)] for _ in range(n)], np.int32)
        if k and kind == StepKind.DECODE:
            accepted = [r.randrange(q) for q in lengths]
            out.accepted = np.array(accepted, np.int32)
            rows = [
                r.randrange(VOCAB) if j < a else -1 for a, q in zip(accepted, lengths, strict=True) for j in range(q)
            ]
            out.verified_ids = np.array(rows, np.int32)
        return out

    def feed(self, events: Any) -> None:
        for uid, flags in zip(events.seq_uid.tolist(), events.flags.tolist(), strict=True):
            if flags & 1:
                self.ended[uid] = self.ended.get(uid, 0) + 1

    def step(self) -> bool:
        """One engine call in the order of ``spec/engine.md`` 5.2. False: the group has agreed to end."""
        core, unfinished = self.core, self.core.unfinished
        o = self.chooser.schedule(core)
        number = self.chooser.steps
        self.trace.append((int(o.kind), int(o.num_reqs), core.probe().decode_since_prefill, unfinished))
        if o.num_reqs:
            core.pack_sampler(o.step_id) if core.config.num_draft == 0 else core.pack(o.step_id)
            self.open.append((number, int(o.step_id), int(o.kind), o.seqlens_q.tolist()))
        in_place = core.config.depth == 1 or o.kind == StepKind.PREFILL
        goes_on = True
        while self.chooser.num_open > (0 if in_place else 1):
            self.commit(number - self.chooser.num_open + 1)
            goes_on = self.chooser.settle(core) and goes_on
        self.feed(core.poll_events())
        return goes_on

    def commit(self, number: int) -> None:
        """Phase D of step ``number`` of the group; nothing for a placeholder."""
        if self.open and self.open[0][0] == number:
            _, step_id, kind, lengths = self.open.pop(0)
            self.feed(self.core.commit(step_id, self.sampled(kind, lengths)))
            self.core.step_done(step_id)

    def run(self, steps: int, limit: int | None = None) -> int:
        """Random traffic for ``steps`` steps, then until the group agrees that nothing is left."""
        for _ in range(limit or 4 * steps + 1000):
            if self.chooser.steps < steps:
                self.traffic()
            if not self.step() and self.chooser.steps >= steps:
                break
        else:
            raise AssertionError(f"no end after {self.chooser.steps} steps: {self.core.stats()}")
        while self.open:
            self.commit(self.open[0][0])
        self.feed(self.core.poll_events())
        self.core.schedule(StepMode.DECODE)  # reports what ended, so that the audit finds nothing
        self.core.check()
        self.core.audit()
        wrong = [uid for uid in self.submitted if self.ended.get(uid) != 1]
        if wrong or self.core.unfinished:
            raise AssertionError(f"requests without exactly one end: {wrong}")
        return self.chooser.steps

    def report(self) -> dict[str, Any]:
        return {"trace": self.trace, "steps": self.chooser.steps, "requests": len(self.submitted)}


def check_group(traces: Sequence[Sequence[Sequence[int]]], *, interval_any: int, depth: int) -> dict[str, int]:
    """What must hold for the traces of all ranks; returns counts of what happened. Raises AssertionError."""
    counts = {"decode": 0, "prefill": 0, "empty_prefill": 0, "placeholder": 0, "isolated": 0}
    lengths = {len(t) for t in traces}
    if len(lengths) != 1:
        raise AssertionError(f"the ranks ended at different steps: {lengths}")
    idle = 0
    for number, ranks in enumerate(zip(*traces, strict=True), 1):
        kinds, rows, ds, unfinished = zip(*ranks, strict=True)
        if len(set(kinds)) != 1 or len(set(ds)) != 1:
            raise AssertionError(f"step {number}: kinds {kinds}, counters {ds}")
        if kinds[0] == StepKind.PREFILL and (ds[0] != 0 or not any(rows)):
            raise AssertionError(f"step {number}: a prefill step with d {ds} and rows {rows}")
        idle = idle + 1 if any(unfinished) and not any(rows) else 0
        if idle > interval_any + depth + 2:
            raise AssertionError(f"step {number}: work on {unfinished}, and no token for {idle} steps")
        is_prefill = kinds[0] == StepKind.PREFILL
        counts["prefill" if is_prefill else "decode"] += 1
        counts["empty_prefill" if is_prefill else "placeholder"] += sum(n == 0 for n in rows)
        counts["isolated"] += is_prefill and sum(n > 0 for n in rows) == 1
    return counts


class ThreadGroup:
    """Reduces of ranks that are threads of one process. ``leave`` breaks the group for everybody."""

    def __init__(self, size: int, timeout_s: float = 5.0) -> None:
        self.size, self._timeout = size, timeout_s
        self._lock = threading.Condition()
        self._rounds: dict[int, list[Sequence[int]]] = {}
        self._left = False

    def rank(self, rank: int) -> ThreadReducer:
        return ThreadReducer(self, rank)

    def put(self, number: int, values: Sequence[int]) -> None:
        with self._lock:
            self._rounds.setdefault(number, []).append(list(values))
            self._lock.notify_all()

    def get(self, number: int) -> list[int]:
        with self._lock:
            done = self._lock.wait_for(lambda: self._left or len(self._rounds[number]) == self.size, self._timeout)
            if not done or self._left:
                raise GroupError(f"reduce {number}: a rank is gone or late")
            self._rounds.pop(number - 4 * self.size, None)
            return [max(column) for column in zip(*self._rounds[number], strict=True)]

    def leave(self) -> None:
        with self._lock:
            self._left = True
            self._lock.notify_all()


class ThreadReducer:
    """``DpReducer`` of one thread."""

    def __init__(self, group: ThreadGroup, rank: int) -> None:
        self.rank, self.size = rank, group.size
        self._group = group
        self._number = 0

    def start_max(self, values: Sequence[int]) -> ThreadPending:
        self._number += 1
        self._group.put(self._number, values)
        return ThreadPending(self._group, self._number)


class ThreadPending:
    def __init__(self, group: ThreadGroup, number: int) -> None:
        self._group, self._number = group, number

    def wait(self) -> list[int]:
        return self._group.get(self._number)


def run_ranks(size: int, work: Any) -> list[Any]:
    """``work(reducer)`` in one thread for each rank; raises the first failure of any."""
    group = ThreadGroup(size)
    results: list[Any] = [None] * size
    failures: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = work(group.rank(rank))
        except BaseException as error:
            failures.append(error)
            group.leave()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    if failures:
        raise failures[0]
    return results
