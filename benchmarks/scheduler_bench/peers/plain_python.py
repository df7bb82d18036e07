"""The plain-Python reference scheduler of the tests as a `Peer`. It packs nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..cases import VOCAB
from .interface import PeerSettings, PeerStep

TESTS = Path(__file__).resolve().parents[3] / "native" / "tests"


class PlainPython:
    def __init__(self, settings: PeerSettings) -> None:
        if str(TESTS) not in sys.path:
            sys.path.append(str(TESTS))  # `reference` is a package beside the tests
        reference = importlib.import_module("reference")
        self._prefill = reference.TRY_PREFILL
        self._scheduler = reference.Scheduler(
            reference.Settings(
                num_blocks=settings.num_blocks,
                max_num_batched_tokens=settings.max_num_batched_tokens,
                max_model_len=settings.max_model_len,
                block_size=settings.block_size,
                num_swa_slots=settings.num_slots,
                num_state_slots=settings.num_slots,
                max_num_seqs=settings.max_num_seqs,
                chunk_align=settings.block_size,
                chunked_prefill=settings.chunked_prefill,
                num_draft=settings.num_draft,
                depth=2,
                prefill_interval_all=settings.prefill_attempt_interval,
                prefill_interval_any=settings.prefill_any_attempt_interval,
                prefill_watermark=1.0,
                stop_preempted=settings.stop_preempted,
            )
        )
        self._draft = settings.num_draft
        self._events: list[Any] = []
        self._open: list[int] = []

    def add(self, prompt: Any, max_tokens: int) -> int:
        return int(self._scheduler.submit(prompt.tolist(), max_tokens=max_tokens, stop=(2,)))

    def abort(self, names: Sequence[int]) -> None:
        self._scheduler.abort(names)

    def schedule(self) -> PeerStep | None:
        o = self._scheduler.schedule_local()
        if not o.num_reqs:
            return None
        self._open.append(o.step_id)
        return PeerStep(o.num_reqs, o.num_batched_tokens, o.kind != 0)

    def pack(self) -> None:
        """The reference stops at the schedule."""

    def prepare(self, step: PeerStep, accepted: int) -> Any:
        held = [[VOCAB - 2] * accepted for _ in range(step.rows)] if accepted and not step.is_prefill else None
        return [VOCAB - 3] * step.rows, held

    def commit(self, answer: Any) -> None:
        sampled, accepted = answer
        drafts = [[VOCAB - 2] * self._draft] * len(sampled) if self._draft else None
        self._events = self._scheduler.commit(self._open[0], sampled, accepted, drafts=drafts)

    def emit(self) -> int:
        events, self._events = self._events, []
        return len(events)

    def recycle(self) -> None:
        self._scheduler.step_done(self._open.pop(0))

    def free(self) -> tuple[int, int]:
        s = self._scheduler
        return len(s.main.free), len(s.state.free)

    def preempted(self) -> int:
        return int(self._scheduler.count["preemptions"])

    def close(self) -> None:
        self._scheduler = None
