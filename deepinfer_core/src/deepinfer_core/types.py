"""Small records that cross plugin boundaries. Data only; nothing here imports torch or a plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attrs import field, frozen

if TYPE_CHECKING:  # numpy costs 140 ms, and listing plugins needs none of it
    import numpy as np
    import numpy.typing as npt

Pool = Literal["main", "index", "swa", "state"]
NumericMode = Literal["released", "exact"]
DraftSchedule = Literal["fixed", "confidence"]
Verification = Literal["rejection", "coupled"]
VerifySetting = Literal["auto", "rejection", "coupled"]
Determinism = Literal["off", "run", "batch"]
PrefixReplay = Literal["window", "exact"]
ReplayModeName = Literal["off", "mask", "compact"]
REPLAY_MODES: tuple[ReplayModeName, ...] = ("off", "mask", "compact")
"""In this order an engine of one mode takes requests of those before it."""


@frozen
class ModelCard:
    """What is known of a model directory without loading weights (``config.json``, parsed)."""

    path: Path
    """The model directory."""
    architecture: str
    """First entry of ``architectures``; model plugins list those that they know in their manifest."""
    model_type: str
    """As in ``config.json``; empty where it has none."""
    config: Mapping[str, Any]
    """The whole of ``config.json``."""


@frozen
class Requirements:
    """What a model needs of a backend; compared once, before weights load (``spec/kernels.md`` 3.2)."""

    ops: frozenset[str] = frozenset()
    """Op ids that the model calls."""
    formats: frozenset[str] = frozenset()
    """Cache formats, with or without the prefix ``kv:``."""
    features_required: frozenset[str] = frozenset()
    """Features without which the model does not run."""
    features_preferred: frozenset[str] = frozenset()
    """Features that it makes use of; the backend with most of them is preferred."""
    limits: Mapping[str, int] = field(factory=dict)
    """Sizes that the backend's limits are compared with: ``topk``, ``heads`` and names of ``Capabilities.limits``."""


@frozen
class WeightSizes:
    """How large the weights of a model are."""

    values: int
    """Numbers; scales are none."""
    num_bytes: int
    """Of the values and their scales, as a checkpoint stores them."""


@frozen
class ModelMatch:
    """A model plugin's answer to a card: it can run it, how well (``score``), and what it needs."""

    name: str
    """The model's name in the manifest."""
    requirements: Requirements = Requirements()
    """Compared with each backend before one is chosen, and again with the created one."""
    score: int = 0
    """The highest one wins where several plugins match."""
    card: ModelCard | None = None
    """The card that was matched; the core sets it where the plugin does not."""
    payload: object = None
    """The plugin's own parsed configuration, handed back to its other hooks."""
    weight_sizes: Callable[[int], WeightSizes] | None = None
    """How large the weights are with so many drafts, by the configuration alone; asked before they are made to measure.
    """
    with_layers: Callable[[int], Mapping[str, object]] | None = None
    """``config.json`` of the same model with so many layers and all else as it is, for measurements; raises ConfigError
    for a number that the model cannot have."""


@frozen
class OpFloor:
    """The least that one op of a step must do; of ``floors``, which a model may have."""

    op: str
    """What it is called in a report."""
    num_bytes: float
    """Bytes read once and written once."""
    flop: float = 0.0
    """Operations, a multiply-add counted as two."""


@frozen
class CacheLayer:
    """One layer's share of a cache unit: ``entries`` rows of ``format`` for ``width`` values each."""

    layer: int
    """Index of the layer in the model."""
    entries: int
    """Rows of one unit."""
    format: str
    """Cache format, one of the claims ``kv:...`` without the prefix."""
    width: int
    """Values of one entry."""
    ratio: int = 1
    """Tokens of the text that one entry stands for."""


@frozen
class CacheSpec:
    """One cache type: which pool its units belong to, and what each layer keeps in a unit.

    A unit is a block of ``block_size`` tokens (pools ``main`` and ``index``, which share block ids) or one slot of a
    sequence (pools ``swa`` and ``state``).
    """

    name: str
    """What the model calls it: ``caches.view(name, layer)``."""
    pool: Pool
    """Which pool its units belong to."""
    layers: Sequence[CacheLayer]
    """The layers that own such a cache, each once."""


@frozen
class SchedulerHints:
    """What a model and a backend tell the scheduler (``spec/engine.md`` 0.1, 2.1, 6.3).

    ``ratios_sparse``/``ratios_dense``: compression ratios of layers with and without an indexer.
    ``ngram_table``: int32 ``[size]``, compressed token id of each token id; ``ngram_pad`` is a *compressed* id.
    """

    block_size: int = 128
    """Tokens of one block, where the setting does not say."""
    window: int = 0
    """Positions of the sliding window; 0: none."""
    backtrack: int = 1
    """Positions that a step may take back."""
    swa_ring: int = 0
    """Positions of the window ring of a sequence, at least ``window + backtrack``; 0: no ring."""
    ratios_sparse: tuple[int, ...] = ()
    """Compression ratios of layers with an indexer."""
    ratios_dense: tuple[int, ...] = ()
    """Compression ratios of layers without one."""
    state_slots: bool = False
    """Each sequence needs a slot of the pool ``state``."""
    ngram: int = 0
    """Tokens of the longest n-gram that the model looks up; 0: none."""
    ngram_table: npt.NDArray[np.int32] | None = None
    """int32 ``[size]``: compressed id of each token id."""
    ngram_pad: int = 0
    """Compressed id that stands before the beginning of a text."""
    max_model_len: int | None = None
    """Longest sequence that the model is made for, in tokens."""
    vocab_size: int | None = None
    """Ids that may occur in a prompt."""
    stream_ordered_reuse: bool = False
    """All work on cache memory is issued on one queue in order, so that a unit may be reused by the next launched
    step."""
    row_order: Literal["stable", "length_desc"] = "stable"
    """``length_desc``: the backend wants the longest requests first."""
    joint_steps: bool = False
    """The backend runs prefill and decode rows in one step. This release makes no such steps."""
    zero_swa_on_alloc: bool = False
    """Slots of the pool ``swa`` are zeroed when a sequence gets them."""
    num_draft: int = 0
    """Draft tokens of a request in each decode step (K); the sampler then verifies and proposes them."""
    inputs: Literal["InputMetadata", "InputMetadataV41"] = "InputMetadata"
    """The richest input record any plugin reads; the packer fills no more than that."""
    index_topk: int = 0
    """Compressed entries that a query attends to at most where there is an indexer; 0 = not told. For cost models."""
    prefix_replay: bool = False
    """The model can take up a sequence at a reused prefix (``spec/engine.md`` 2.10): whatever it keeps outside blocks
    is rebuilt by running the last ``window`` positions again, with windows cut at their start and no store to the
    blocks. Without it the prefix cache is refused."""
    window_layers: int = 0
    """Layers with a sliding window, each reading what the one in front of it wrote; 0: not told. So many windows, one
    behind the other, a replay must span to be exact (``spec/model.md`` 5.4)."""
    encoder_layers: int = 0
    """Of them those in front of the decoder half, which needs the newest rows of a prompt only: the model reads the
    ``rp_`` fields of ``InputMetadataV41`` (``spec/engine.md`` 3.7). 0: it runs all rows everywhere, and bounded replay
    is refused."""


@frozen
class ProbeReport:
    """What a backend finds on this host, without creating a device context (runs in a child process)."""

    present: bool
    """A device of this kind is in the machine."""
    usable: bool
    """It can be used now."""
    devices: tuple[str, ...] = ()
    """One name for each device."""
    arch: str = ""
    """Architecture of the devices, compared with ``arch`` of the manifest; empty: not compared."""
    driver: str = ""
    """Driver or library with its version."""
    score: int = 0
    """Ranks backends of which none meets more preferred features."""
    reasons: tuple[str, ...] = ()
    """Why it cannot be used."""
    remedy: str = ""
    """What a person can do about that."""


@frozen
class Capabilities:
    """What a backend instance can do (``spec/kernels.md`` 3.2). JSON-serialisable."""

    name: str
    """The backend's name."""
    device_type: str
    """Kind of device, as torch calls it."""
    arch: str
    """Architecture of the device: ``cpu``, ``sm_90``."""
    count: int = 1
    """Devices of this instance."""
    memory_bytes: int = 0
    """Memory of the device; 0: not told."""
    dtypes: frozenset[str] = frozenset()
    """Number formats of activations."""
    gemm_formats: frozenset[tuple[str, str, str]] = frozenset()
    """Triples (activation, weight, scale) that ``gemm.*`` takes."""
    kv_formats: frozenset[str] = frozenset()
    """Formats of main and window caches."""
    index_formats: frozenset[str] = frozenset()
    """Formats of index caches."""
    sf_word: str = "f32"
    """How scale factors are packed: ``f32``, ``i32x4``, ``i16x2``."""
    heads: tuple[int, ...] = ()
    """Counts of query heads that attention takes; empty: any."""
    max_topk: int = 0
    """Most entries that ``index.topk`` gives; 0: any."""
    page_sizes: tuple[int, ...] = ()
    """Tokens of a block that the ops take; empty: any."""
    max_experts: int = 0
    """Most experts of a layer; 0: any."""
    graph: bool = False
    """Steps can be captured and replayed."""
    timing_events: bool = False
    """Events of the device carry times."""
    features: frozenset[str] = frozenset()
    """Features, by the names of the claims without ``feature:``."""
    limits: Mapping[str, int] = field(factory=dict)
    """Further limits by name; what is not named is not limited."""
    determinism: Mapping[str, bool] = field(factory=dict)
    """``run_to_run``, ``batch_invariant``, ``cross_backend_sampler``: which of them hold."""
    notes: str = ""
    """Anything a reader of a report should know."""
    emulated: bool = False
    """The backend's code runs on the processor in place of its device (setting ``emulate``); results say so."""


@frozen
class HostInfo:
    """The machine as a probe sees it."""

    os: str
    """``linux``, ``darwin``, ...: ``sys.platform``."""
    machine: str
    """``x86_64``, ``aarch64``, ..."""
    python: str
    """Version of Python."""


@frozen
class DoctorCheck:
    """One thing that a plugin looked at for ``deepinfer doctor``, told in one line."""

    name: str
    """What was looked at, in one or two words: ``library``, ``threads``."""
    status: Literal["ok", "note", "problem"]
    """``note``: worth knowing, and nothing fails. ``problem``: this plugin, or a part of it, cannot be used."""
    detail: str
    """What was found: versions, paths, sizes; or what is wrong."""
    reason: str = ""
    """Why, for a problem."""
    remedy: str = ""
    """What to do, for a problem."""


@frozen
class CommandSpec:
    """A command that a plugin adds to ``deepinfer``: data, so that nothing is imported until the command runs."""

    name: str
    """As in ``commands`` of the plugin's manifest."""
    target: str
    """``module:attribute`` of a ``click.Command``; ``deepinfer_core.commands`` has the common options."""
    help: str
    """What it does, in one line."""


@frozen
class Score:
    """What a scorer says of one answer."""

    correct: bool
    """Whether it is right."""
    found: str | None
    """What was taken from the text as the answer, for a person to look at; None: there is none in it."""


@frozen
class ScoreExample:
    """An answer that a scorer judges in a known way."""

    text: str
    """The answer."""
    expected: Any
    """What the item expects."""
    correct: bool
    """How it is judged."""


@frozen
class EngineSnapshot:
    """The state of an engine, for an observer."""

    stats: Any
    """Counters and pool levels: ``deepinfer_native.stats.CoreStats``."""
    drafts: Any = None
    """What speculation did: ``deepinfer_core.pipeline.draft_report.DraftReport``, all zero without it."""
    fault: str = ""
    """What is wrong with the memory of an engine that had nothing to do; empty: nothing was."""
    audits: int = 0
    """How often that was looked at."""


@frozen
class StepReport:
    """A committed step, for observers."""

    kind: str
    """``prefill`` or ``decode``."""
    num_reqs: int
    """Requests in the step."""
    num_tokens: int
    """Rows of the step."""
    seconds: float
    """Its time: since it was scheduled, or since the commit before where that came later."""
    phases: Mapping[str, float]
    """Seconds of host time in each phase since the report before (two steps may overlap)."""


@frozen
class RequestReport:
    """A request that ended, for observers. Times are in seconds; None where there is nothing to measure."""

    request_id: str
    """As the caller named it."""
    sample: int
    """Place among the samples of its prompt."""
    finish_reason: str
    """Why it ended."""
    prompt_tokens: int
    """Tokens of its prompt."""
    cached_tokens: int
    """Of these, tokens that a prefix cache saved."""
    output_tokens: int
    """Tokens of its answer."""
    queue_s: float | None
    """From submission to its first step."""
    ttft_s: float | None
    """From submission to its first token."""
    itl_s: float | None
    """Mean time between two of its tokens."""
    total_s: float
    """From submission to its end."""
