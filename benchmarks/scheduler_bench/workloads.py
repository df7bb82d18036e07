"""Who arrives and leaves between steps. Nothing in here is in the timed region of a step; what clients pay (submit,
abort) is timed by itself."""

from __future__ import annotations

from time import perf_counter_ns as now

import numpy as np

from .cases import VOCAB, Case
from .device import EOS
from .pipeline import Pipeline


class Workload:
    """Requests of one case, from fixed seeds."""

    def __init__(self, case: Case, pipeline: Pipeline, seed: int = 0) -> None:
        self.case, self.pipeline = case, pipeline
        self.rng = np.random.default_rng([seed, case.seqs, case.prompt])
        self.alive: list[int] = []
        self.submit_ns: list[int] = []
        self.abort_ns: list[int] = []
        self.aborted = 0
        self._bulk = self.rng.integers(EOS + 1, VOCAB, 2 * case.longest_prompt + 4096, dtype=np.int32)
        self._head = self._bulk[: case.shared].copy()

    def fill(self) -> None:
        """The first requests: as many as are kept alive, with what is left of their outputs in a mixed state."""
        for i in range(self.case.seqs):
            self._submit(left=(i + 1) / self.case.seqs)

    def before_step(self) -> None:
        """Arrivals and aborts, once per engine call."""
        ended = self.pipeline.ended
        if ended:
            gone = set(ended)
            ended.clear()
            self.alive = [uid for uid in self.alive if uid not in gone]
        getattr(self, f"_{self.case.load}")()

    def _steady(self) -> None:
        """Nobody comes or goes."""

    def _closed(self) -> None:
        """A client for each place, and a queue half as long behind them."""
        while len(self.alive) < self.case.seqs * 3 // 2:
            self._submit()

    def _churn(self) -> None:
        """Poisson arrivals at the rate at which requests end when ``seqs`` are running."""
        mean_output = (16 + self.case.output) / 2
        rate = self.case.seqs * (1 + self.case.accepted) / mean_output
        for _ in range(int(self.rng.poisson(rate))):
            self._submit()

    def _storm(self) -> None:
        """A tenth of the live requests is aborted, and replaced."""
        n = max(1, len(self.alive) // 10)
        chosen = self.rng.choice(len(self.alive), n, replace=False).tolist()
        uids = [self.alive[i] for i in chosen]
        began = now()
        self.pipeline.core.abort(uids)
        self.abort_ns.append((now() - began) // n)
        self.aborted += n
        gone = set(uids)
        self.alive = [uid for uid in self.alive if uid not in gone]
        for _ in uids:
            self._submit()

    def _submit(self, left: float = 1.0) -> None:
        prompt, output = self._prompt(), self._output(left)
        began = now()
        uid = self.pipeline.core.submit(prompt, max_tokens=output, eos_ids=(EOS,), temperature=1.0)
        self.submit_ns.append(now() - began)
        self.alive.append(uid)

    def _output(self, left: float) -> int:
        case = self.case
        if case.load == "churn":
            output = int(self.rng.integers(16, case.output + 1))
        else:
            output = case.longest_output
        return max(1, round(output * left)) if case.output else output

    def _prompt(self) -> np.ndarray:
        case = self.case
        length = case.prompt
        if case.load == "churn":
            length = int(np.clip(self.rng.lognormal(np.log(case.prompt), 1.0), 16, case.longest_prompt))
        at = int(self.rng.integers(0, self._bulk.size - length))
        tail = self._bulk[at : at + length]
        if not case.shared:
            return tail
        if self.rng.random() < case.share:
            return np.concatenate([self._head, tail])
        at = int(self.rng.integers(0, self._bulk.size - case.shared))
        return np.concatenate([self._bulk[at : at + case.shared], tail])
