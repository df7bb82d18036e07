"""The seams: what a backend, a model, a sampler, a grammar engine and a scorer must offer. The core knows no more
about them.

Tensors are opaque here (``Tensor`` is ``Any``): the core moves them between plugins, reads ``len`` and indexes rows,
and never imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from deepinfer_core.backend import build_backend, cpu_backend
from deepinfer_core.observation.interfaces import EngineView, StepObserver
from deepinfer_core.types import CacheSpec, Capabilities, Score, ScoreExample

if TYPE_CHECKING:  # numpy comes with the records; a Protocol needs them for type checkers only
    from deepinfer_contracts import InputMetadata, SamplerInputs, SamplerOutput

__all__ = [
    "Backend",
    "Caches",
    "DraftBlock",
    "DraftingModel",
    "DraftingSampler",
    "Draw",
    "EngineView",
    "Grammar",
    "GrammarEngine",
    "LogitsFilter",
    "Matcher",
    "Model",
    "PromptScorer",
    "RowSampler",
    "Sampler",
    "Scorer",
    "StaticDraftingSampler",
    "StaticSampler",
    "StaticStep",
    "StepObserver",
    "Tensor",
    "build_backend",
    "cpu_backend",
]

Tensor = Any
"""What a backend computes with; a ``torch.Tensor`` in the first-party ones."""
Record = TypeVar("Record")


@runtime_checkable
class Caches(Protocol):
    """Allocated cache memory of all pools."""

    def view(self, name: str, layer: int) -> Any:
        """The ``CacheView`` (tensor, format, page, block stride) of cache ``name`` at ``layer``."""

    def zero(self, pool: str, units: Sequence[int]) -> None:
        """Fill units (block or slot ids) of ``pool`` with zero bytes."""

    def clone(self, pool: str, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy units ``src`` to ``dst``."""

    @property
    def nbytes(self) -> int:
        """Bytes allocated over all pools."""


@runtime_checkable
class Backend(Protocol):
    """A device with its ops. Op groups are attributes: ``backend.norm.rms``, ``backend.gemm.dense``, ...

    Seven more methods are not required. ``record_event()`` marks the end of everything launched so far and
    ``wait(event)`` makes the host wait for it; without them results are ready when a call returns. ``no_sync()`` is a
    context in which a call that waits for the device is an error (setting ``sync_guard``). ``prefetch(tensors)`` begins
    to copy values to the host behind everything launched so far, without waiting; ``to_host`` of the same tensors then
    gives them without waiting for what was launched later. ``capture(call)`` runs ``call`` once, records what it
    launches and returns what launches it again, in the same memory; it raises GraphCaptureError for a call that cannot
    be recorded (setting ``graphs``). ``copy_all(targets, sources)`` copies tensors into others of the same shapes in as
    few launches as it can. ``host_like(tensor)`` gives host memory of the tensor's shape and type, as a torch tensor
    that a captured ``copy_(tensor, non_blocking=True)`` may write and that ``numpy()`` shares.

    ``explain_fault(op, exc)`` gives the typed error (CapacityError, DeviceLost) that an exception
    raised in the call ``op`` of any plugin stands for, or None.
    """

    name: str
    """The backend's name."""
    device: Any
    """What tensors of this backend live on, as torch names it."""
    capabilities: Capabilities
    """What it can do; compared with what the model requires."""
    ops: Mapping[str, Any]
    """Every op id that this backend offers -> callable."""
    plan: Mapping[str, str]
    """Op id -> who provides it (``deepinfer-cpu``, ...): the execution plan, which every run logs."""

    def unit_bytes(self, specs: Sequence[CacheSpec], pool: str) -> int:
        """Bytes of one unit of ``pool`` (a block counts main and index together), padding included."""

    def alloc_caches(self, specs: Sequence[CacheSpec], units: Mapping[str, int]) -> Caches:
        """Allocate zeroed memory for ``units[pool]`` units of each pool. ``main`` and ``index`` share their ids.

        Raises CapacityError when the device has too little memory.
        """

    def bind_inputs(self, record: Record) -> Record:
        """The same contract record with its arrays as tensors on this device. No copy where memory is shared."""

    def to_host(self, tensor: Tensor) -> Any:
        """A numpy array with the values of ``tensor``; waits for the device."""

    def close(self) -> None:
        """Give everything back, and write what is to be kept, such as counters: no hook tells a plugin that the engine
        ends. Idempotent."""


@runtime_checkable
class Model(Protocol):
    """A causal language model over paged caches.

    A model may also have ``check_prompt(ids: tuple[int, ...]) -> None``, which is not required of it: the core calls it
    with the token ids of each prompt before the prompt is queued. It raises a DeepInferError (InvalidPrompt,
    NotSupported) for a prompt that the model cannot run; only that prompt ends.

    A model may also have ``check_checkpoint(path: Path) -> str``, which is not required of it: ``deepinfer doctor``
    calls it in place of ``load``. It reads headers, perhaps scales, and no weights, raises CheckpointError listing
    every problem found, and returns what is there in a few words.

    A model may also have ``load_dummy(seed: int) -> None``, which is not required of it: in place of ``load`` it makes
    random weights of the shapes that its configuration asks for (setting ``load_format``).

    A model may also have ``static_decode = True``, which is not required of it: ``forward`` of a decode step then
    launches the same work in the same memory whenever the shapes of its inputs are the same, and reads neither values
    of the device nor ``num_reqs`` and ``total_q``. Only such a model runs in graphs (setting ``graphs``). It may get
    rows of placeholders behind those of the step (``valid_token_mask`` is false there), which must not change others.

    A model may also have ``floors(rows: int, context: int, *, prefill: bool, kept: int) -> Sequence[OpFloor]``, which
    is not required of it: the least bytes and FLOP of each op of a step, without its draft head. A decode step has one
    row for each of ``rows`` sequences of ``context`` tokens; ``rows`` of a prefill step are the first of one prompt,
    and the decoder half runs the last ``kept`` of them (0: all).

    A model that proposes drafts is a :class:`DraftingModel`.
    """

    vocab_size: int
    """Columns of the logits."""

    def load(self, path: Path) -> None:
        """Read the checkpoint at ``path``. Raises CheckpointError listing every problem found."""

    def forward(self, inputs: InputMetadata, caches: Caches) -> Tensor:
        """Run all rows of one step, writing the caches. Returns hidden rows ``[T, D]`` in request order."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Head over selected rows. ``hidden [R, D]`` -> f32 ``[R, V]``."""


@runtime_checkable
class Sampler(Protocol):
    """Turns logits into tokens for the rows of one step.

    A sampler may have ``sample_with(logits, inputs, parts)``, which is not required of it: the engine calls it in place
    of ``sample`` for a step in which requests name row samplers or logits filters. ``parts`` maps the place of such a
    request in the step to its ``deepinfer_core.requests.request_parts.RequestParts``.

    A sampler may have ``host_inputs = True``, which is not required of it: it then gets the inputs as the core packed
    them, in host memory, and decides without waiting for a device what has to be computed.

    One that keeps something for each sequence has ``sequence_bytes``, what that takes for each of them and once more,
    and ``reserve(max_num_seqs)``, called once, before the first step. The engine counts it as memory of the caches.

    A sampler may also have ``check_params(params: SamplingParams) -> None``: the core calls it with the parameters of
    each prompt before the prompt is queued. It raises a DeepInferError (NotSupported, InvalidParameter) for what it
    cannot do; only that prompt ends. Log-probabilities of prompts are the business of a :class:`PromptScorer`.
    """

    def sample(self, logits: Tensor, inputs: SamplerInputs) -> SamplerOutput:
        """``logits`` f32 ``[R, V]``, one row per ``inputs.selected_rows``.

        The arrays that come back are numpy's or tensors of the device; the engine fetches them when the step is
        committed, and the next step reads tokens, drafts and accepted counts on the device before that. With drafts
        (``row_count`` above 1) ``verified_ids``, ``accepted`` and ``draft_ids`` belong to them; where the model drafts,
        the sampler is a :class:`DraftingSampler` and leaves ``draft_ids`` to its ``draft``.

        A row that cannot be sampled (NaN, nothing allowed) is reported in ``row_status``; it never raises for it.
        """


@runtime_checkable
class StaticSampler(Sampler, Protocol):
    """A sampler that says in which steps its work depends on nothing but the logits. The engine may record such a step
    in a graph together with ``model.logits``, for more rows than the step has."""

    def is_static(self, inputs: SamplerInputs) -> bool:
        """Whether ``sample`` of a decode step with these inputs, one row a request, gives what :meth:`sample_static`
        gives, and leaves nothing else behind. Called for every decode step; reads host memory alone."""

    def sample_static(self, logits: Tensor) -> SamplerOutput:
        """One request a row of ``logits`` f32 ``[R, V]``; every array of the result has R rows. What it launches
        depends on R alone, and nothing in it waits for the device."""


Draw = Callable[[Any], int]
"""The canonical draw of one row: probabilities ``[V]`` (numpy, not negative, summing to 1) -> token. The same row, seed
and position give the same token everywhere. Raises ValueError for what is no distribution."""


@runtime_checkable
class RowSampler(Protocol):
    """Chooses the tokens of the requests that name it (``SamplingParams.sampler``): steps 9 to 13 of
    ``spec/sampling.md`` 2.2 are its own, masks, filters and temperature come before it.

    The one object serves every request that names it with the same parameters, so what it keeps must not depend on
    which request asks.
    """

    def sample(self, logits: Any, draws: Sequence[Draw]) -> Sequence[int]:
        """The token of each row; called for the rows of one request at a time.

        Several rows belong to a verification of drafts: row j assumes that the drafts before it were accepted, and its
        own draft is accepted if it is the token that comes back.

        :param logits: numpy f32 ``[rows, vocab_size]``, divided by the temperature; -inf where a token is forbidden.
            Not to be changed: the tokens are checked against it.
        :param draws: One for each row.
        :returns: A token of the vocabulary for each row. What this raises ends the request alone.
        """


@runtime_checkable
class LogitsFilter(Protocol):
    """Changes the logits of the requests that name it (``SamplingParams.logits_filters``), behind bias and penalties
    and before the grammar mask (between steps 5 and 6 of ``spec/sampling.md`` 2.2).

    The one object serves every request that names it with the same parameters.
    """

    def apply(self, logits: Any, positions: Sequence[int]) -> Any:
        """The changed logits; called for the rows of one request at a time.

        What is -inf before stays forbidden, whatever comes back; a filter leaves it -inf. A row depends on itself and
        its position only, so that an answer is the same with and without drafts.

        :param logits: numpy f32 ``[rows, vocab_size]``, a copy that may be changed.
        :param positions: Absolute index of the token of each row, within prompt and answer.
        :returns: f32 of the same shape, without NaN or +inf. What this raises ends the request alone.
        """


@runtime_checkable
class PromptScorer(Sampler, Protocol):
    """A sampler that can say how likely the tokens of a prompt are. Without it, requests for that are refused."""

    def prompt_logprobs(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Log-probabilities of ``tokens`` under the model's own distribution: no mask, bias, penalty or filter, and
        temperature 1. Nothing may wait for the device.

        Called with slices of the rows of a prefill step; a value must not depend on where the slices end.

        :param logits: f32 ``[R, V]``; columns beyond the vocabulary are padding.
        :param tokens: int32 ``[R]`` on the device.
        :returns: f32 ``[R]``, at most 0; NaN or -inf where the row says nothing, which is reported as -9999.
        """


@runtime_checkable
class Matcher(Protocol):
    """Where one answer is in its grammar, token by token. The engine thread alone uses it, one call at a time.

    The end tokens (``Tokenizer.eos_ids``) are part of every grammar: allowed exactly where the text may end, and
    nothing is allowed behind one. Tokens without text (special tokens, ids beyond the tokenizer) are never allowed.
    """

    def accept(self, token: int) -> bool:
        """Take ``token``, any id below ``vocab_size``. False, and nothing changes, if it is not allowed here."""

    def fill(self, mask: Any) -> None:
        """Write the tokens that are allowed next, end tokens included, into every word of ``mask``.

        ``mask``: int32 ``[ceil(vocab_size / 32)]``, numpy; bit ``v % 32`` of word ``v // 32``, least significant first,
        is 1 where token ``v`` is allowed. Bits beyond the vocabulary are 0: a mask without any bit is a dead end. Not
        called behind an end token.
        """

    def rollback(self, n: int) -> None:
        """Undo the last ``n`` accepted tokens, an end token included: at most draft length + 2, and never too many."""

    def finished(self) -> bool:
        """Whether an end token was accepted."""


@runtime_checkable
class Grammar(Protocol):
    """A compiled grammar. It may be shared by many requests, and does not change.

    A grammar may also have ``nbytes``, which is not required: the memory that it holds, for the limit of the cache.
    """

    def matcher(self) -> Matcher:
        """A new matcher at the start of the grammar."""


@runtime_checkable
class GrammarEngine(Protocol):
    """Compiles grammars for one vocabulary."""

    def compile(self, so_args: Mapping[str, Any]) -> Grammar:
        """Compile ``{"schema_type": ..., "schema": ...}`` (``spec/sampling.md`` 3.1), checked for form and size.

        ``schema_type``: ``json`` (a JSON schema as JSON text), ``regex``, ``ebnf``, ``structural_tag`` (JSON text) or
        ``json_object`` (any JSON object; the schema is empty). Triggers and bound tokens are the core's business and
        not in here.

        Called in worker threads, several at a time. Whatever it raises ends only the request that asked, and its text
        is shown to the caller. A constraint that cannot be enforced is an error, and never left out.
        """


@runtime_checkable
class Scorer(Protocol):
    """Judges answers of an evaluation, one at a time. Keeps nothing of any of them: the same two give the same score.

    What is expected comes from a file that a person wrote: any value of JSON.
    """

    def check(self, expected: Any) -> None:
        """Raise InvalidParameter for an expected answer that no answer could be compared with; says what may stand
        there.

        Called for every item before anything is generated.
        """

    def score(self, text: str, expected: Any) -> Score:
        """Judge an answer. An answer in which nothing is found to compare is wrong, and no error.

        :param text: The whole answer, as the model wrote it: it may be empty, cut short, or anything else.
        :param expected: What ``check`` let pass.
        """

    def examples(self) -> Sequence[ScoreExample]:
        """Answers with their judgement, under the parameters of this scorer; under its defaults a right one and a wrong
        one at least. The conformance kit holds the scorer to them."""


@runtime_checkable
class DraftBlock(Protocol):
    """Drafts of one step, one after the other: each depends on the one drawn before it."""

    def step(self, k: int, previous: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits f32 ``[N, V]`` of draft ``k`` of each request, and its confidence f32 ``[N]`` in [0, 1] or None.

        Called with k = 0, 1, ... in order. The confidence is the chance that the draft is accepted if all before it
        are. Nothing may wait for the device.

        :param previous: int ``[N]`` on the device: the token that the step sampled (k = 0), then draft ``k - 1``.
        """


@runtime_checkable
class DraftingModel(Model, Protocol):
    """A model with a drafter (``spec/sampling.md`` 4.1), which runs behind the sampling of a step.

    One with ``static_decode`` may also have ``draft`` in two parts, which are then called in its place:
    ``draft_rows(inputs, sampled_ids, accepted)`` gives the tensors that a block starts from, by name, each with as many
    entries for every request, and ``propose(rows, caches)`` makes the block of them. ``propose``, and ``step`` of its
    block, launch the same work for the same number of requests, so that they can run in graphs; requests that are
    placeholders may stand behind those of the step.
    """

    draft_block: int
    """Most drafts that it proposes in a step; 0: this checkpoint has no drafter."""

    def draft(
        self, hidden: Tensor, inputs: InputMetadata, sampled_ids: Tensor, accepted: Tensor | None, caches: Caches
    ) -> DraftBlock:
        """Begin the drafts of a step: those for the positions behind the tokens that it sampled.

        Called for every decode step, and for a prefill step in which a prompt ends; what it proposes there for
        prompts that go on is not read. Nothing may wait for the device.

        :param hidden: What ``forward`` returned, all rows ``[T, D]``.
        :param inputs: What ``forward`` got.
        :param sampled_ids: int ``[N]`` on the device; a request without a token has any value there.
        :param accepted: int ``[N]`` on the device, drafts of each request that the step accepted; None in prefill.
        """


@runtime_checkable
class DraftingSampler(Sampler, Protocol):
    """A sampler that draws the drafts of a :class:`DraftingModel`, which are verified in the next step."""

    def draft(
        self, block: DraftBlock, inputs: SamplerInputs, sampled: SamplerOutput, num_draft: int
    ) -> tuple[Tensor, Tensor | None]:
        """Draw ``num_draft`` drafts of each request with its own parameters; called behind ``sample``.

        :param inputs: What ``sample`` got, and ``sampled`` what it returned.
        :returns: draft ids int ``[N, K]``, -1 for none, and confidences f32 ``[N, K]`` in [0, 1] or None. They belong
            into ``SamplerOutput``, where the engine puts them.
        """


@runtime_checkable
class StaticStep(Protocol):
    """A decode step with drafts of ``size`` requests, as work that is the same whatever it is loaded with: it reads
    what depends on the step from memory that stays where it is. The engine records both calls in graphs, together with
    ``model.logits`` and the model's block, and launches them again for later steps.

    Requests behind those of the step, and rows behind its rows, are placeholders: what comes back of them is not read.
    Nothing in it waits for the device.
    """

    def verify(self, logits: Tensor) -> SamplerOutput:
        """What ``sample`` gives for logits f32 ``[size * (K + 1), V]``: arrays of requests have ``size`` entries, those
        of rows as many as there are. ``confidence_error`` has one entry."""

    def draft(self, block: DraftBlock, sampled: SamplerOutput) -> tuple[Tensor, Tensor | None]:
        """What ``draft`` gives behind ``verify``, ``size`` requests of it.

        :param sampled: What ``verify`` returned, all of it."""


@runtime_checkable
class StaticDraftingSampler(DraftingSampler, Protocol):
    """A drafting sampler with decode steps whose work does not depend on what the requests ask for."""

    def static_step(self, inputs: SamplerInputs, size: int) -> StaticStep | None:
        """The step of these inputs for ``size`` requests, loaded; the same object for every step of a size. None where
        ``sample`` and ``draft`` do something else, or leave something else behind.

        Called for every decode step that has at most ``size`` requests; queues copies to the device and never waits for
        it. The rows of a request lie behind those of the one before.
        """
