"""Structured output of one engine: requests that wait for their grammar, and those that run in it."""

from __future__ import annotations

import os
from typing import Any, Self

from attrs import frozen

from deepinfer_core.assembly.parts import Parts
from deepinfer_core.structured.report import GrammarReport
from deepinfer_core.structured.running import RunningGrammars
from deepinfer_core.structured.waiting import GrammarLimits, WaitingForGrammar
from deepinfer_core.text.tokenizer import Tokenizer

WAIT_S = 0.05
"""Longest time that an engine with nothing else to do waits at once: Ctrl-C is seen then, and a new prompt read."""


@frozen
class GrammarManager:
    """Both halves. Nothing is made, and no plugin loaded, before the first request asks for structured output."""

    waiting: WaitingForGrammar
    running: RunningGrammars

    @classmethod
    def of(cls, parts: Parts, tokenizer: Tokenizer, core_config: Any, allowed_vocab: int) -> Self:
        """``core_config``: of the native core; ``allowed_vocab``: ids that may be sampled."""
        config = parts.config
        limits = GrammarLimits(
            workers=min(config.so_builder_cpus, usable_cpus()),
            timeout_s=config.so_timeout_s,
            cache_bytes=config.so_cache_bytes,
            depth=core_config.num_draft + 2,
            in_order=config.deterministic == "run",  # under "batch" tokens do not depend on steps
        )
        return cls(
            WaitingForGrammar(parts.grammar_engine, tokenizer, core_config.vocab_size, limits, parts.owners),
            RunningGrammars(
                num_draft=core_config.num_draft,
                max_num_seqs=core_config.max_num_seqs,
                vocab_size=core_config.vocab_size,
                allowed_vocab=allowed_vocab,
            ),
        )

    def report(self) -> GrammarReport:
        waiting, running = self.waiting, self.running
        counts = waiting.service.counts() if waiting.service is not None else None
        return GrammarReport(
            compiled=counts.compiled if counts else 0,
            cached=counts.cached if counts else 0,
            failed=counts.failed if counts else 0,
            timed_out=waiting.timed_out,
            stuck_workers=counts.stuck if counts else 0,
            steps=running.steps,
            masks=running.filled,
            fill_ns=running.fill_ns,
        )


def usable_cpus() -> int:
    """Processors that this process may run on."""
    try:
        return max(1, len(os.sched_getaffinity(0)))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1
