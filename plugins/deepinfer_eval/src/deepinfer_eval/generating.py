"""Answers from an engine into a journal or a stream, each as soon as it is whole.

An answer that fails is told and not written: the next run asks for it again, and a score says that it is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from attrs import define

from deepinfer_core.commands import Progress
from deepinfer_core.interrupts import HeldInterrupt
from deepinfer_eval.asking import Ask, Asker
from deepinfer_eval.scorer_names import as_record

if TYPE_CHECKING:
    from deepinfer_core.llm import LLM
    from deepinfer_core.requests.request import Request
    from deepinfer_eval.answer_stream import AnswerStream
    from deepinfer_eval.journal import Journal


@define
class Generation:
    """One run over what is missing; ``written`` and ``failed`` count as it goes."""

    llm: LLM
    asker: Asker
    journal: Journal | AnswerStream
    trace: Callable[[BaseException], None]
    """Shows where an error came from, where a person asked for that."""
    written: int = 0
    failed: int = 0

    def run(self, asks: list[Ask]) -> None:
        """Ask for all of ``asks``. After Ctrl-C the answers that are whole are written before KeyboardInterrupt rises.

        :raises OutputError: the journal takes no more; what it has is whole.
        """
        run = self.llm.run(self.asker.inputs(self.llm, asks))
        progress = Progress(enabled=True)
        try:
            for request in run:
                if request.finished:
                    progress.ended(request, run.count)
                    with HeldInterrupt():
                        self._ended(request, asks[request.index])
        except KeyboardInterrupt:
            for head in run.stop():
                for sample in head.samples:
                    if not sample.is_closed and sample.completion().ok:  # whole, and not handed out any more
                        self._ended(sample, asks[sample.index])
            raise
        finally:
            run.stop()
            progress.close()

    def _ended(self, request: Request, ask: Ask) -> None:
        completion = request.completion()
        if not completion.ok:
            self.failed += 1
            self._tell(request, ask)
            return
        item = self.asker.dataset.items[ask.item]
        record: dict[str, object] = {
            "id": item.item_id,
            "item": ask.item,
            "sample": ask.samples[request.sample],
            "expected": item.expected,
            "text": completion.text,
            "finish_reason": completion.finish_reason,
            "finish_detail": str(completion.finish_detail),
            "num_output_tokens": len(completion.token_ids),
            "token_ids": list(completion.token_ids),
            "seed": completion.seed,
        }
        if self.llm.built.is_emulated:
            record["emulated"] = True
        if item.scorer is not None:
            record["scorer"] = as_record(item.scorer)
        if request.chat is not None:
            from deepinfer_core.chat.results import chat_choice

            choice = chat_choice(request)
            record |= {"text": choice.content, "reasoning": choice.reasoning}
        self.journal.append(record)
        self.written += 1

    def _tell(self, request: Request, ask: Ask) -> None:
        if request.sample and request.error is request.head.error:
            return  # of the question as a whole, and said once
        item = self.asker.dataset.items[ask.item]
        if request.error is not None:
            self.trace(request.error)
        text = str(request.error or f"it ended with {request.finish_reason}")
        lines = [f"  {line.strip()}" if i else line for i, line in enumerate(text.splitlines())]
        sys.stderr.write(f"deepinfer: line {item.line}, id {item.item_id}: " + "\n".join(lines) + "\n")
