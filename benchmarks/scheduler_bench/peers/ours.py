"""The C core as a `Peer`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepinfer_contracts import StepKind
from deepinfer_native import Core, CoreConfig

from ..cases import SETTINGS, VOCAB
from ..device import EOS, Answers
from .interface import PeerSettings, PeerStep


class OurCore:
    """Boundary validation on, two steps deep, through cffi."""

    def __init__(self, settings: PeerSettings) -> None:
        more = {"csr_tables": False} if "csr_tables" in SETTINGS else {}
        self._core = Core(
            CoreConfig(
                num_blocks=settings.num_blocks,
                max_num_batched_tokens=settings.max_num_batched_tokens,
                max_model_len=settings.max_model_len,
                vocab_size=VOCAB,
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
                window=128,
                ratios_sparse=(1, 2),
                inputs="InputMetadataV41",
                **more,
            )
        )
        self._answers: dict[int, Answers] = {}
        self._draft = settings.num_draft
        self._newest: Any = None
        self._events: Any = None
        self._open: list[int] = []

    def add(self, prompt: Any, max_tokens: int) -> int:
        return self._core.submit(prompt, max_tokens=max_tokens, eos_ids=(EOS,))

    def abort(self, names: Sequence[int]) -> None:
        self._core.abort(names)

    def schedule(self) -> PeerStep | None:
        o = self._core.schedule_local()
        if not o.num_reqs:
            return None
        self._newest = o
        self._open.append(o.step_id)
        return PeerStep(o.num_reqs, o.num_batched_tokens, o.kind == StepKind.PREFILL)

    def pack(self) -> None:
        self._core.pack(self._newest.step_id)

    def prepare(self, step: PeerStep, accepted: int) -> Any:
        if accepted not in self._answers:
            self._answers[accepted] = Answers(VOCAB, self._draft, accepted)
        return self._answers[accepted].answer(self._newest)

    def commit(self, answer: Any) -> None:
        self._events = self._core.commit(self._open[0], answer)

    def emit(self) -> int:
        e = self._events
        read = e.seq_uid, e.kind, e.flags, e.token_id, e.output_index, e.finish_reason
        self._events = None
        return len(read[0])

    def recycle(self) -> None:
        self._core.step_done(self._open.pop(0))

    def free(self) -> tuple[int, int]:
        stats = self._core.stats()
        return stats.main.free + stats.main.cached, stats.state.free

    def preempted(self) -> int:
        return self._core.stats().preemptions

    def close(self) -> None:
        self._core.close()
