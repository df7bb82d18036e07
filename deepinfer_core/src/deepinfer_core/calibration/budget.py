"""``target_itl_ms``: a cost profile for this engine, read or measured, and the settings of the core that use it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import attrs
from attrs import frozen

from deepinfer_core.calibration.fit import fit
from deepinfer_core.calibration.measure import RULER_NS, Point, Run, Stopwatch, measure
from deepinfer_core.calibration.plan import LEAST_TOKENS, MOST_TOKENS, batches_of, chunks_of
from deepinfer_core.calibration.profile import Profile, load, profile_key, profile_path, save
from deepinfer_core.errors import ConfigError
from deepinfer_core.pipeline.meter import StepObserver
from deepinfer_core.types import SchedulerHints

if TYPE_CHECKING:
    from deepinfer_native import AttentionKind

PASSES = 2
MAX_KINDS = 8
MOST_MIN_CHUNK = 128


class Measured(Protocol):
    """What this module needs of an engine."""

    core: Any

    def close(self) -> None: ...


@frozen
class TimeBudget:
    """A profile, and where it came from in one line."""

    profile: Profile
    origin: str
    target_itl_ms: int

    @property
    def text(self) -> str:
        """The line for stderr."""
        return f"deepinfer: target {self.target_itl_ms} ms between decode steps; step times {self.origin}"

    def settings(self, max_chunk: int) -> dict[str, Any]:
        """Settings of the core: a chunk and a decode step take turns while a prompt runs beside others.

        The smallest chunk is the one whose rows take as long as its step does without them: below it a step is mostly
        overhead, and a long prompt would take longer than the gaps are worth.
        """
        prefill = self.profile.prefill
        least = round((prefill.base_ns + prefill.seq_ns) / prefill.row_ns) if prefill.row_ns else MOST_MIN_CHUNK
        return {
            "target_itl_ns": self.target_itl_ms * 1_000_000,
            "prefill_interval_all": 1,
            "max_prefill_burst": 1,
            "min_chunk": max(1, min(least, MOST_MIN_CHUNK, max_chunk)),
        }


def check_target(target_itl_ms: int, *, chunked_prefill: bool, max_tokens: int) -> None:
    """Raise ConfigError where no chunk of a prompt could keep to a target, or none could be measured.

    :param max_tokens: Positions that a sequence, and the caches, hold.
    """
    if not chunked_prefill:
        raise ConfigError(
            f"target_itl_ms is {target_itl_ms}, but chunked_prefill is off",
            reason="a target is kept by cutting prompts into chunks",
            remedy="leave --no-chunked-prefill or --target-itl-ms out",
            details={"field": "target_itl_ms"},
        )
    if max_tokens < LEAST_TOKENS:
        raise ConfigError(
            f"target_itl_ms is {target_itl_ms}, but sequences of {max_tokens} tokens are too short for it",
            reason=f"step times are measured with sequences of at least {LEAST_TOKENS} tokens",
            remedy="raise --max-model-len or --kv-memory, or leave --target-itl-ms out",
            details={"field": "target_itl_ms", "tokens": max_tokens, "least": LEAST_TOKENS},
        )


def attention_kinds(hints: SchedulerHints, *, bounded: bool = False) -> list[AttentionKind]:
    """Pair counts that this model's attention may cost: its window, every ratio without a cap, and up to its top-k.

    ``bounded``: the decoder half leaves rows out. Then the window and the finest ratio count there by themselves too.
    """
    from deepinfer_native import AttentionKind

    kinds = [AttentionKind(1, hints.window, shift=True)] if hints.window else []
    ratios = sorted({*hints.ratios_sparse, *hints.ratios_dense})
    kinds += [AttentionKind(ratio) for ratio in ratios]
    if hints.index_topk:
        kinds += [AttentionKind(ratio, hints.index_topk) for ratio in sorted(hints.ratios_sparse)]
    if bounded:
        kinds += [attrs.evolve(kind, kept=True) for kind in kinds if kind.ratio == min(ratios, default=1)]
    return kinds[:MAX_KINDS]


def time_budget(
    target_itl_ms: int,
    hints: SchedulerHints,
    facts: Mapping[str, Any],
    *,
    make_engine: Callable[[Mapping[str, Any], StepObserver], Measured],
    run_on: Callable[[Any], Run],
    max_tokens: int,
    max_step_tokens: int,
    max_num_seqs: int,
    keep: int = 0,
) -> TimeBudget:
    """The profile of an engine with these ``facts``, read from its file or measured now.

    :param make_engine: (core settings to change, observer) -> an engine over the real model and caches.
    :param run_on: The engine -> a function that runs prompts on it.
    :param max_tokens: Positions that a sequence, and the caches, hold.
    :param keep: Rows of a prompt that the decoder half runs; 0: all.
    :raises DeepInferError: a step failed while measuring.
    """
    kinds = attention_kinds(hints, bounded=keep > 0)
    facts = {**facts, "kinds": [(k.ratio, k.cap, k.shift, k.block, k.kept) for k in kinds], "tokens": max_tokens}
    path = profile_path(profile_key(facts))
    profile = load(path)
    if profile is not None:
        return TimeBudget(profile, f"read from {path}", target_itl_ms)
    begin = time.perf_counter()
    limit = min(max_tokens - 8, MOST_TOKENS)
    watch = Stopwatch()
    engine = make_engine({"prefill_step_ns": RULER_NS, "chunk_align": 1, "min_chunk": 1, "depth": 1}, watch)
    watch.core = engine.core
    try:
        watch.begin()
        batches = batches_of(limit, max_num_seqs, max_tokens)
        points = measure(watch, run_on(engine), chunks_of(limit, max_step_tokens), batches, PASSES, keep)
    finally:
        engine.close()
    profile = _fitted(points, kinds, keep)
    seconds = time.perf_counter() - begin
    line = (
        f"measured in {seconds:.1f} s at {len(points)} points"
        f" (error {profile.prefill_error:.0%} prefill, {profile.decode_error:.0%} decode)"
    )
    try:
        save(path, profile, facts, points)
    except OSError as err:
        return TimeBudget(profile, f"{line}, not kept: {path}: {err.strerror or err}", target_itl_ms)
    return TimeBudget(profile, f"{line}, kept in {path}", target_itl_ms)


def _fitted(points: Iterable[Point], kinds: list[AttentionKind], keep: int) -> Profile:
    listed = list(points)
    prefill, prefill_error = fit([p for p in listed if p.kind == "prefill"], kinds, keep)
    # A decode step runs every row in both halves.
    decode, decode_error = fit([p for p in listed if p.kind == "decode"], [k for k in kinds if not k.kept])
    return Profile(prefill, decode, len(listed), prefill_error, decode_error)
