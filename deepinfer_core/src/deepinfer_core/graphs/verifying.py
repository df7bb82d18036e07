"""Steps that verify drafts and draw new ones, recorded behind a decode graph.

Verification and drafts are many small launches, which take the host longer than the device needs for a step of few
requests. A sampler says which steps do the same work whatever they are loaded with
(``deepinfer_core.interfaces.StaticDraftingSampler``). Two graphs serve a number of requests: one has logits and
verification; the other one, behind the rows that the model's block starts from, the block and all drafts of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from deepinfer_core.graphs.recorded import Capture
from deepinfer_core.graphs.results import Arrays, HostLike, RecordedArrays, arrays_of, cut
from deepinfer_core.graphs.sampling import MOST_ROWS, sampled
from deepinfer_core.graphs.sizes import covering
from deepinfer_core.records import SamplerOutput

if TYPE_CHECKING:
    from deepinfer_core.graphs.decode import DecodeGraphs
    from deepinfer_core.graphs.drafts import DraftGraphs
    from deepinfer_core.interfaces import DraftBlock, StaticDraftingSampler, StaticStep, Tensor

Propose = Callable[[Mapping[str, Any]], "DraftBlock"]
"""``model.propose`` with the engine's caches."""


class VerifyGraphs:
    """Stands for ``model.logits``, ``sampler.sample``, ``model.draft`` and ``sampler.draft`` in decode steps.

    :param decode: The graphs that the hidden rows come from.
    :param logits: ``model.logits``.
    :param drafts: Has what the model's block starts from.
    :param num_draft: Drafts of a request, K.
    :param host_like: ``Backend.host_like``, or None.
    """

    def __init__(
        self,
        decode: DecodeGraphs,
        logits: Callable[[Tensor], Tensor],
        sampler: StaticDraftingSampler,
        drafts: DraftGraphs,
        capture: Capture,
        num_draft: int,
        host_like: HostLike | None = None,
    ) -> None:
        self._decode, self._logits, self._sampler, self._drafts = decode, logits, sampler, drafts
        self._capture, self._host_like = capture, host_like
        self._rows = num_draft + 1
        self._sizes = tuple(size for size in drafts.sizes if size * self._rows <= MOST_ROWS)
        self._verified: dict[int, RecordedArrays] = {}
        self._drawn: dict[int, RecordedArrays] = {}
        self._size = 0
        self._step: StaticStep | None = None
        self.num_launched = 0
        """Steps that were sampled from graphs."""

    def takes(self, requests: int, inputs: Any) -> bool:
        """Whether a step of ``requests`` requests with these ``SamplerInputs`` runs here; it is loaded then."""
        size = covering(self._sizes, requests)
        self._size, self._step = size or 0, None if size is None else self._sampler.static_step(inputs, size)
        return self._step is not None

    def sample(self, requests: int, rows: int) -> tuple[SamplerOutput, SamplerOutput]:
        """As that of ``SampleGraphs``, for the step that was loaded."""
        made = self._verified.get(self._size)
        if made is None:
            made = self._verified[self._size] = self._record_verification()
        self.num_launched += 1
        return sampled(made.launch(), made.on_host, requests, rows)

    def start(self, inputs: Any, results: SamplerOutput) -> None:
        """Load the rows of the model's block, behind :meth:`sample`. ``results``: what the next step reads."""
        self._drafts.load(self._size, inputs, results.sampled_ids, results.accepted)

    def draw(self, requests: int, propose: Propose) -> tuple[SamplerOutput, SamplerOutput]:
        """Drafts and confidences behind :meth:`start`, for the host and for the next step; valid until the next call.

        ``propose`` is called when a graph is recorded, and what it raises is raised.
        """
        made = self._drawn.get(self._size)
        if made is None:
            made = self._drawn[self._size] = self._record_drafts(propose)
        found = cut(made.launch(), requests, requests * self._rows)
        return SamplerOutput(**(cut(made.on_host, requests, requests * self._rows) or found)), SamplerOutput(**found)

    def record(self, size: int) -> None:
        """Nothing: graphs with drafts are recorded when their size is first needed, as those of the model's block."""

    @property
    def num_recorded(self) -> int:
        return len(self._verified) + len(self._drawn)

    # What a recording's own run gives is not used: the second graph reads the memory of the first one, which is
    # computed at a launch only. Both may run again, since they change nothing that they read.

    def _record_verification(self) -> RecordedArrays:
        hidden, step = self._decode.hidden[: self._size * self._rows], self._loaded()

        def verify() -> Arrays:
            return arrays_of(step.verify(self._logits(hidden)))

        return RecordedArrays(self._capture, verify, self._host_like)

    def _record_drafts(self, propose: Propose) -> RecordedArrays:
        memory, step, verified = self._drafts.memory(self._size), self._loaded(), self._verified[self._size]

        def draw() -> Arrays:
            ids, confidence = step.draft(propose(memory), SamplerOutput(**verified.latest))
            return arrays_of(SamplerOutput(draft_ids=ids, confidence=confidence))

        return RecordedArrays(self._capture, draw, self._host_like)

    def _loaded(self) -> StaticStep:
        if self._step is None:
            raise RuntimeError("takes() comes first")  # of this package: no plugin, and no user, gets here
        return self._step
