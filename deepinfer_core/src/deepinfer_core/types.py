"""Small records that cross plugin boundaries. Data only; nothing here imports torch or a plugin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


@frozen
class ModelCard:
    """What is known of a model directory without loading weights (``config.json``, parsed)."""

    path: Path
    architecture: str
    model_type: str
    config: Mapping[str, Any]


@frozen
class Requirements:
    """What a model needs of a backend; compared once, before weights load (``spec/kernels.md`` 3.2)."""

    ops: frozenset[str] = frozenset()
    formats: frozenset[str] = frozenset()
    features_required: frozenset[str] = frozenset()
    features_preferred: frozenset[str] = frozenset()
    limits: Mapping[str, int] = field(factory=dict)


@frozen
class ModelMatch:
    """A model plugin's answer to a card: it can run it, how well (``score``), and what it needs."""

    name: str
    requirements: Requirements = Requirements()
    score: int = 0
    card: ModelCard | None = None
    payload: object = None
    """The plugin's own parsed configuration, handed back to its other hooks."""


@frozen
class CacheLayer:
    """One layer's share of a cache unit: ``entries`` rows of ``format`` for ``width`` values each."""

    layer: int
    entries: int
    format: str
    width: int
    ratio: int = 1


@frozen
class CacheSpec:
    """One cache type: which pool its units belong to, and what each layer keeps in a unit.

    A unit is a block of ``block_size`` tokens (pools ``main`` and ``index``, which share block ids) or one slot of a
    sequence (pools ``swa`` and ``state``).
    """

    name: str
    pool: Pool
    layers: Sequence[CacheLayer]


@frozen
class SchedulerHints:
    """What a model and a backend tell the scheduler (``spec/engine.md`` 0.1, 2.1, 6.3).

    ``ratios_sparse``/``ratios_dense``: compression ratios of layers with and without an indexer.
    ``ngram_table``: int32 ``[size]``, compressed token id of each token id; ``ngram_pad`` is a *compressed* id.
    """

    block_size: int = 128
    window: int = 0
    backtrack: int = 1
    swa_ring: int = 0
    ratios_sparse: tuple[int, ...] = ()
    ratios_dense: tuple[int, ...] = ()
    state_slots: bool = False
    ngram: int = 0
    ngram_table: npt.NDArray[np.int32] | None = None
    ngram_pad: int = 0
    max_model_len: int | None = None
    vocab_size: int | None = None
    stream_ordered_reuse: bool = False
    row_order: Literal["stable", "length_desc"] = "stable"
    joint_steps: bool = False
    zero_swa_on_alloc: bool = False
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


@frozen
class ProbeReport:
    """What a backend finds on this host, without creating a device context (runs in a child process)."""

    present: bool
    usable: bool
    devices: tuple[str, ...] = ()
    arch: str = ""
    driver: str = ""
    score: int = 0
    reasons: tuple[str, ...] = ()
    remedy: str = ""


@frozen
class Capabilities:
    """What a backend instance can do (``spec/kernels.md`` 3.2). JSON-serialisable."""

    name: str
    device_type: str
    arch: str
    count: int = 1
    memory_bytes: int = 0
    dtypes: frozenset[str] = frozenset()
    gemm_formats: frozenset[tuple[str, str, str]] = frozenset()
    kv_formats: frozenset[str] = frozenset()
    index_formats: frozenset[str] = frozenset()
    sf_word: str = "f32"
    heads: tuple[int, ...] = ()
    max_topk: int = 0
    page_sizes: tuple[int, ...] = ()
    max_experts: int = 0
    graph: bool = False
    timing_events: bool = False
    features: frozenset[str] = frozenset()
    limits: Mapping[str, int] = field(factory=dict)
    determinism: Mapping[str, bool] = field(factory=dict)
    notes: str = ""


@frozen
class HostInfo:
    """The machine as a probe sees it."""

    os: str
    machine: str
    python: str


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
    remedy: str = ""


@frozen
class ConfigPatch:
    """A setting that a plugin asks for, with its reason; two different values for one key are refused."""

    key: str
    value: object
    reason: str
