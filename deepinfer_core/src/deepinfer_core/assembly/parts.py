"""The parts that an engine is built from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from deepinfer_core.config import EngineConfig
from deepinfer_core.interfaces import Backend, GrammarEngine, LogitsFilter, Model, RowSampler, Sampler
from deepinfer_core.text.tokenizer import Tokenizer
from deepinfer_core.types import CacheSpec, ModelCard, SchedulerHints

MakeGrammarEngine = Callable[[Tokenizer, int], GrammarEngine]
"""Makes a grammar engine for a tokenizer and a width of the logits; slow, and called in a worker thread."""


class Parts(Protocol):
    """What an engine is built from, as ``deepinfer_core.assembly.assemble.Assembly`` has it."""

    @property
    def config(self) -> EngineConfig: ...
    @property
    def card(self) -> ModelCard: ...
    @property
    def backend(self) -> Backend: ...
    @property
    def model(self) -> Model: ...
    @property
    def cache_specs(self) -> Sequence[CacheSpec]: ...
    @property
    def hints(self) -> SchedulerHints: ...
    @property
    def owners(self) -> Mapping[str, str]: ...
    def make_sampler(self, name: str | None, params: Mapping[str, Any], vocab_size: int) -> Sampler: ...
    def make_row_sampler(self, name: str, params: Mapping[str, Any], vocab_size: int) -> RowSampler: ...
    def make_logits_filter(self, name: str, params: Mapping[str, Any], vocab_size: int) -> LogitsFilter: ...
    def grammar_engine(self) -> MakeGrammarEngine: ...
