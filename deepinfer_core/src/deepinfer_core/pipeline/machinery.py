"""What every phase works on: the plugins' parts, and how they are called."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

from attrs import define

from deepinfer_core.graphs import DecodeGraphs, captured_sizes
from deepinfer_core.graphs.drafts import DraftGraphs, drafted_sizes
from deepinfer_core.graphs.recorded import Capture
from deepinfer_core.graphs.sampling import SampleGraphs
from deepinfer_core.graphs.static_inputs import copy_each
from deepinfer_core.graphs.verifying import VerifyGraphs
from deepinfer_core.interfaces import Backend, Caches, Model, Sampler, StaticDraftingSampler, StaticSampler
from deepinfer_core.pipeline.faults import Boundary, Owners
from deepinfer_core.pipeline.sampled import wrong_step_return
from deepinfer_core.pipeline.times import PhaseTimes
from deepinfer_core.records import InputMetadata
from deepinfer_core.requests.request_parts import PartsMaker

FEED_TOKENS = "meta.feed_tokens"


@define(eq=False)
class Machinery:
    """The parts of one engine. ``vocab_size``: ids that may be sampled."""

    backend: Backend
    model: Model
    sampler: Sampler
    caches: Caches
    vocab_size: int
    times: PhaseTimes
    at: Boundary
    """The plugin boundary."""
    guard: Callable[[], AbstractContextManager[object]]
    """Entered around the launches of B and C: a call in there that waits for the device is an error."""
    record_event: Callable[[], Any] | None
    wait_event: Callable[[Any], object] | None
    core_config: Any = None
    """Of the native core: sizes that completing the inputs on the device needs."""
    ngram_table: Any = None
    """The compression table of the n-grams, on the device."""
    prefetch: Callable[[Iterable[Any]], object] | None = None
    """Begins to copy results to the host."""
    capture: Capture | None = None
    """Records what a call launches; None: no step runs in a graph."""
    decode: DecodeGraphs | None = None
    """``model.forward`` of decode steps, where they run in graphs."""
    propose: DraftGraphs | None = None
    """``model.draft``, where it runs in graphs."""
    drafts: bool = False
    """The model proposes drafts and the sampler draws them; a sampler may also come with drafts of its own."""
    parts_maker: PartsMaker | None = None
    """Makes the row samplers and logits filters that requests name."""
    with_sum_smaller: bool = False
    """The sampler was asked for the audit statistic of the tokens that it chooses."""

    @classmethod
    def of(
        cls,
        backend: Backend,
        model: Model,
        sampler: Sampler,
        caches: Caches,
        vocab_size: int,
        *,
        owners: Owners | None = None,
        sync_guard: bool = False,
        graphs: bool = False,
        with_sum_smaller: bool = False,
        parts_maker: PartsMaker | None = None,
    ) -> Self:
        """Look up what a backend may leave out.

        ``sync_guard``: wants ``backend.no_sync``. ``graphs``: decode steps run in graphs, which backend and model can.
        """
        return cls(
            backend,
            model,
            sampler,
            caches,
            vocab_size,
            PhaseTimes(),
            Boundary(owners or Owners(), getattr(backend, "explain_fault", None)),
            getattr(backend, "no_sync", nullcontext) if sync_guard else nullcontext,
            getattr(backend, "record_event", None),
            getattr(backend, "wait", None),
            prefetch=getattr(backend, "prefetch", None),
            capture=getattr(backend, "capture", None) if graphs else None,
            with_sum_smaller=with_sum_smaller,
            parts_maker=parts_maker,
        )

    def join(self, config: Any) -> None:
        """``config`` is that of the core which schedules the steps."""
        self.core_config = config
        has_drafter = bool(getattr(self.model, "draft_block", 0))
        self.drafts = config.num_draft > 0 and has_drafter and hasattr(self.sampler, "draft")
        if config.depth > 1 and config.ngram and config.ngram_table is not None:
            self.ngram_table = self.bound(InputMetadata(input_ids=config.ngram_table)).input_ids
        if self.capture is not None:
            self._use_graphs(config, self.capture)

    def _use_graphs(self, config: Any, capture: Capture) -> None:
        from deepinfer_native import placeholder_inputs  # a core exists, so its package does

        per_request = config.num_draft + 1
        sizes = captured_sizes(config.max_num_seqs * per_request, per_request)
        copy_all = getattr(self.backend, "copy_all", copy_each)
        placeholder = self.bound(placeholder_inputs(config))
        self.decode = DecodeGraphs(self.model.forward, self.caches, capture, sizes, placeholder, copy_all=copy_all)
        host_like = getattr(self.backend, "host_like", None)
        if not config.num_draft and isinstance(self.sampler, StaticSampler):
            self.decode.sampling = SampleGraphs(self.decode, self._logits, self.sampler, capture, host_like)
        if self.drafts and hasattr(self.model, "draft_rows"):
            rows = self.model.draft_rows(placeholder, placeholder.input_ids, placeholder.positions)
            sizes = drafted_sizes(config.max_num_seqs)
            self.propose = DraftGraphs(self.model, self.caches, capture, sizes, rows, copy_all=copy_all)
            if isinstance(self.sampler, StaticDraftingSampler):
                self.decode.sampling = VerifyGraphs(
                    self.decode, self._logits, self.sampler, self.propose, capture, config.num_draft, host_like
                )

    def _logits(self, hidden: Any) -> Any:
        with self.at.call("model.logits"):
            logits = self.model.logits(hidden)
            self.at.expect_rows("model.logits", logits, len(hidden))
            return logits

    def bound(self, record: Any) -> Any:
        """``record`` on the device. Raises HookReturnError where the backend gives nothing back."""
        bound = self.backend.bind_inputs(record)
        if bound is None:
            raise wrong_step_return("backend.bind_inputs", self.at.owners.backend, "None", type(record).__name__)
        return bound
