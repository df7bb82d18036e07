"""Level 2: a checkpoint, known texts forced through it, and the bits of one way beside those of another.

What must be equal (``spec/model.md`` 5.4): ``mask`` and ``compact``, whatever the chunks, also behind a prefix hit; and
all modes for prompts that the decoder half keeps whole. What ``compact`` costs against ``off`` is told, not judged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from attrs import define, field, frozen

from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import InvalidInputFile
from deepinfer_verify.engine_settings import settings_for
from deepinfer_verify.replay.findings import Findings
from deepinfer_verify.replay.rule import MODES, Geometry, Mode, hit_of
from deepinfer_verify.replay.traced import Trace, TracedEngine, Wish
from deepinfer_verify.ulps import ulps

CHUNK = 37
"""Odd, so that chunks end inside groups of every ratio and nowhere near a block's end."""

SETTINGS = ("numeric_mode", "cache_formats", "draft_tokens", "keep_tokens", "block_size", "max_model_len")
"""Those of a caller that hold, beside where the engine runs."""


@frozen
class Sizes:
    """Of the model, and of the prompts that follow from them."""

    geometry: Geometry
    lengths: tuple[int, ...]
    shared: int
    """Tokens that prompts have in common with one that ran before: whole blocks and a few more."""
    tails: tuple[int, ...]
    new_tokens: int

    @property
    def longest(self) -> int:
        return max(*self.lengths, self.shared + max(self.tails)) + self.new_tokens


@define
class Level2:
    """What came of it."""

    findings: Findings = field(factory=Findings)
    sizes: Sizes | None = None
    backend: str = ""
    costs: list[tuple[int, float, float]] = field(factory=list)
    """(tokens of a prompt, perplexity with ``off``, with ``compact``), where they need not be equal."""


def run_level2(config: EngineConfig, text: str, new_tokens: int) -> Level2:
    """All comparisons. Raises as engines do, InvalidInputFile for a text that is too short."""
    result = Level2()
    with _engine(config) as engine:
        sizes = result.sizes = _sizes(engine, new_tokens)
        backend = engine.llm.assembly.backend
        result.backend = f"{backend.name}, emulated" if backend.capabilities.emulated else backend.name
        ids = _ids(engine, text, sizes)
        wishes = list(_cold(ids, sizes))
        whole = dict(zip(wishes, engine.run(wishes), strict=True))
    with _engine(config, max_chunk=CHUNK) as engine:
        chunked = dict(zip(wishes, engine.run(wishes), strict=True))
    _compare_engines(config, wishes, whole, result)
    _compare_modes(whole, sizes, "whole prompts", result)
    _compare_modes(chunked, sizes, f"chunks of {CHUNK}", result)
    for wish in wishes:
        case = f"{wish.mode}, {len(wish.prompt)} tokens: chunks of {CHUNK} and the whole prompt"
        _same(result.findings, case, whole[wish], chunked[wish])
    for chunk in (None, CHUNK):
        _compare_hits(config, chunk, ids, sizes, result)
    return result


def _engine(config: EngineConfig, **changes: object) -> TracedEngine:
    wanted = {"deterministic": "batch", "verify": "coupled", "replay_mode": "compact", "seed": 0, **changes}
    kept = [key for key in SETTINGS if key != "keep_tokens" or wanted["replay_mode"] != "off"]
    return TracedEngine(settings_for(config, wanted, kept)[0])


def _sizes(engine: TracedEngine, new_tokens: int) -> Sizes:
    from deepinfer_core.assembly.bounded_replay import bounded_replay

    parts, config = engine.llm.assembly, engine.llm.config
    hints = parts.hints
    keep = bounded_replay(config, hints, config.draft_tokens).keep
    block = config.block_size or hints.block_size
    geometry = Geometry(hints.window, keep, block, hints.swa_ring, tuple(hints.ratios_sparse))
    window = hints.window
    lengths = sorted({max(1, window // 2), keep, keep + 1, keep + window + 3, 3 * keep + 2 * window + 5})
    shared = (max(window, keep) // block + 2) * block + 3
    return Sizes(geometry, tuple(lengths), shared, (5, keep + 7), new_tokens)


def _ids(engine: TracedEngine, text: str, sizes: Sizes) -> tuple[int, ...]:
    ids = tuple(engine.llm.get_tokenizer().encode(text))
    needed = sizes.longest + len(sizes.tails) + 1
    if len(ids) < needed:
        raise InvalidInputFile(
            f"the text has {len(ids):,} tokens",
            reason=f"prompts of this model's sizes need {needed:,}",
            remedy="give a longer one with --text",
            details={"tokens": len(ids), "needed": needed},
        )
    return ids


def _cold(ids: Sequence[int], sizes: Sizes) -> Iterator[Wish]:
    for length in sizes.lengths:
        for mode in MODES:
            end = length + sizes.new_tokens
            yield Wish(f"{mode}, {length} tokens", tuple(ids[:length]), tuple(ids[length:end]), mode)


def _compare_engines(config: EngineConfig, wishes: Sequence[Wish], whole: dict[Wish, Trace], result: Level2) -> None:
    """A request is the same in an engine that packs for its own mode only, where other code runs its rows."""
    for mode in ("off", "mask"):
        own = [wish for wish in wishes if wish.mode == mode]
        with _engine(config, replay_mode=mode) as engine:
            traces = engine.run(own)
        for wish, trace in zip(own, traces, strict=True):
            case = f"{wish.name}: in an engine {mode} and in an engine compact"
            _same(result.findings, case, trace, whole[wish])


def _compare_modes(traces: dict[Wish, Trace], sizes: Sizes, how: str, result: Level2) -> None:
    by_length: dict[int, dict[Mode, Trace]] = {}
    for wish, trace in traces.items():
        by_length.setdefault(len(wish.prompt), {})[wish.mode] = trace
    for length, of in by_length.items():
        _same(result.findings, f"{length} tokens, {how}: compact and mask", of["mask"], of["compact"])
        if length <= sizes.geometry.keep:
            _same(result.findings, f"{length} tokens, {how}: compact and off", of["off"], of["compact"])
        elif how == "whole prompts":
            result.costs.append((length, _perplexity(of["off"]), _perplexity(of["compact"])))


def _compare_hits(config: EngineConfig, chunk: int | None, ids: Sequence[int], sizes: Sizes, result: Level2) -> None:
    """Each mode finds the same beginning, computed by another prompt before, and nothing else."""
    findings, traces = result.findings, dict[Mode, list[Trace]]()
    how = "whole prompts" if chunk is None else f"chunks of {chunk}"
    # Other levels refuse a prefix cache, because results depend on where a hit ends: here that is the same for all.
    with _engine(config, prefix_cache=True, max_chunk=chunk, deterministic="off") as engine:
        for mode in MODES:
            engine.llm.reset_prefix_cache()
            engine.run([Wish("the first prompt", tuple(ids[: sizes.shared + 1]), (ids[sizes.shared + 1],), "off")])
            wishes = list(_tails(ids, sizes, mode))
            traces[mode] = [engine.run([wish])[0] for wish in wishes]
            for wish, trace in zip(wishes, traces[mode], strict=True):
                start, hit = hit_of(sizes.shared, len(wish.prompt), mode, sizes.geometry)
                where, found = "(tokens skipped, run again)", (trace.cached, trace.replayed)
                findings.check("hits", f"{wish.name}, {how}", where, (start, hit - start), found)
    for tail, mask, compact in zip(sizes.tails, traces["mask"], traces["compact"], strict=True):
        _same(findings, f"{sizes.shared + tail} tokens behind a hit, {how}: compact and mask", mask, compact)


def _tails(ids: Sequence[int], sizes: Sizes, mode: Mode) -> Iterator[Wish]:
    for at, tail in enumerate(sizes.tails):
        begin = sizes.shared + 1 + at  # not as the first prompt goes on, and each in its own way
        rest = ids[begin : begin + tail + sizes.new_tokens]
        name = f"{mode}, {sizes.shared + tail} tokens, {sizes.shared} of them cached"
        yield Wish(name, (*ids[: sizes.shared], *rest[:tail]), tuple(rest[tail:]), mode)


def _same(findings: Findings, case: str, expected: Trace, found: Trace) -> None:
    """Every bit, element by element."""
    findings.cases += 1
    for at, (a, b) in enumerate(zip(expected.logprobs, found.logprobs, strict=True)):
        _bits(findings, "log-probabilities", case, f"forced token {at}", a, b)
    findings.check("draft steps", case, "positions of decode steps", sorted(expected.drafts), sorted(found.drafts))
    for at in sorted({*expected.drafts} & {*found.drafts}):
        for place, ((id_a, a), (id_b, b)) in enumerate(zip(expected.drafts[at], found.drafts[at], strict=True)):
            findings.check("draft tokens", case, f"draft {place} behind position {at}", id_a, id_b)
            _bits(findings, "confidences", case, f"draft {place} behind position {at}", a, b)
    findings.check("accepted drafts", case, "by place", expected.accepted, found.accepted)


def _bits(findings: Findings, kind: str, case: str, where: str, a: float, b: float) -> None:
    findings.compared[kind] += 1
    if a.hex() != b.hex():
        steps = ulps(a, b, "f")
        findings.differs(kind, case, f"{where}, {kind}", a.hex(), f"{b.hex()} ({b:.9g}, {steps} ulp apart)")


def _perplexity(trace: Trace) -> float:
    return math.exp(-math.fsum(trace.logprobs) / len(trace.logprobs))
