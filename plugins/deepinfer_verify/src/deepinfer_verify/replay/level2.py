"""Level 2: a checkpoint, known texts forced through it, and the bits of one way beside those of another.

What must be equal (``spec/model.md`` 5.4): ``mask`` and ``compact``, whatever the chunks, also behind a prefix hit; all
modes for prompts that the decoder half keeps whole; and an exact hit and a cold run. What ``compact`` costs against
``off`` is told, not judged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from attrs import define, field

from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import UnsupportedFeature
from deepinfer_verify.engine_settings import settings_for
from deepinfer_verify.replay.bits import same
from deepinfer_verify.replay.findings import Findings
from deepinfer_verify.replay.prompts import Beginning, Sizes, cold, ids_of, sizes_of
from deepinfer_verify.replay.rule import MODES, Mode, hit_of
from deepinfer_verify.replay.traced import Trace, TracedEngine, Wish

CHUNK = 37
"""Odd, so that chunks end inside groups of every ratio and nowhere near a block's end."""
SETTINGS = ("numeric_mode", "cache_formats", "draft_tokens", "keep_tokens", "block_size", "max_model_len")
"""Those of a caller that hold, beside where the engine runs."""
Traces: TypeAlias = Mapping[Wish, Trace]


@define
class Level2:
    """What came of it."""

    findings: Findings = field(factory=Findings)
    sizes: Sizes | None = None
    backend: str = ""
    emulated: bool = False
    """The backend's own code ran on the processor."""
    costs: list[tuple[int, float, float]] = field(factory=list)
    """(tokens of a prompt, perplexity with ``off``, with ``compact``), where they need not be equal."""
    left_out: str = ""
    """What was not compared, and why."""


def run_level2(config: EngineConfig, text: str, new_tokens: int) -> Level2:
    """All comparisons. Raises as engines do, InvalidInputFile for a text that is too short."""
    result = Level2()
    with _first_engine(config) as engine:
        sizes = result.sizes = sizes_of(engine, new_tokens)
        backend = engine.llm.assembly.backend
        result.backend, result.emulated = backend.name, backend.capabilities.emulated
        ids = ids_of(engine, text, sizes)
        exact = _exact_hits(engine, ids, sizes, result)
        wishes = list(cold(ids, sizes))
        tails = [wish for mode in MODES for wish in exact.tails_of(ids, mode)] if exact else []
        whole = dict(zip((*wishes, *tails), engine.run([*wishes, *tails]), strict=True))
    with _engine(config, max_chunk=CHUNK) as engine:
        chunked = dict(zip(wishes, engine.run(wishes), strict=True))
    _compare_engines(config, wishes, whole, result)
    for traces, how in ((whole, "whole prompts"), (chunked, f"chunks of {CHUNK}")):
        _compare_modes({wish: traces[wish] for wish in wishes}, sizes, how, result)
    for wish in wishes:
        case = f"{wish.name}: chunks of {CHUNK} and the whole prompt"
        same(result.findings, case, whole[wish], chunked[wish])
    for chunk in (None, CHUNK):
        _compare_hits(config, chunk, ids, sizes.hits, result)
        if exact is not None:
            _compare_exact_hits(config, chunk, ids, exact, whole, result)
    return result


def _first_engine(config: EngineConfig) -> TracedEngine:
    """Says in the command's words that bits of other batches are compared, where the backend promises none."""
    try:
        return _engine(config)
    except UnsupportedFeature as err:
        if err.details.get("field") != "deterministic":
            raise
        raise UnsupportedFeature(
            "level 2 compares the bits of rows in different batches, and this backend does not promise them",
            reason=err.what,
            remedy="use --backend cpu for level 2; level 1 looks at the rule itself, and needs no backend",
            details=dict(err.details),
        ) from err


def _engine(config: EngineConfig, **changes: object) -> TracedEngine:
    wanted = {"deterministic": "batch", "verify": "coupled", "replay_mode": "compact", "seed": 0, **changes}
    kept = [key for key in SETTINGS if key != "keep_tokens" or wanted["replay_mode"] != "off"]
    return TracedEngine(settings_for(config, wanted, kept)[0])


def _exact_hits(engine: TracedEngine, ids: Sequence[int], sizes: Sizes, result: Level2) -> Beginning | None:
    """Those of the sizes, if model and text are long enough for what has to run again."""
    exact = sizes.exact_hits
    if exact is None:
        result.left_out = "exact prefix hits: the model does not say how many layers read one another's windows"
    elif exact.longest > engine.llm.built.max_model_len:
        result.left_out = f"exact prefix hits: they need {exact.longest:,} positions, more than the model has"
    elif exact.needed > len(ids):
        result.left_out = f"exact prefix hits: they need a text of {exact.needed:,} tokens (--text)"
    return None if result.left_out else exact


def _compare_engines(config: EngineConfig, wishes: Sequence[Wish], whole: Traces, result: Level2) -> None:
    """A request is the same in an engine that packs for its own mode only, where other code runs its rows."""
    for mode in ("off", "mask"):
        own = [wish for wish in wishes if wish.mode == mode]
        with _engine(config, replay_mode=mode) as engine:
            traces = engine.run(own)
        for wish, trace in zip(own, traces, strict=True):
            case = f"{wish.name}: in an engine {mode} and in an engine compact"
            same(result.findings, case, trace, whole[wish])


def _compare_modes(traces: Traces, sizes: Sizes, how: str, result: Level2) -> None:
    by_length: dict[int, dict[Mode, Trace]] = {}
    for wish, trace in traces.items():
        by_length.setdefault(len(wish.prompt), {})[wish.mode] = trace
    for length, of in by_length.items():
        same(result.findings, f"{length} tokens, {how}: compact and mask", of["mask"], of["compact"])
        if length <= sizes.geometry.keep:
            same(result.findings, f"{length} tokens, {how}: compact and off", of["off"], of["compact"])
        elif how == "whole prompts":
            result.costs.append((length, _perplexity(of["off"]), _perplexity(of["compact"])))


def _compare_hits(config: EngineConfig, chunk: int | None, ids: Sequence[int], hits: Beginning, result: Level2) -> None:
    """Behind a hit of which one window runs again, results are another run's; in ``mask`` and ``compact`` the same."""
    # Other levels refuse such a cache, because results depend on where a hit ends: here that is the same for all.
    with _engine(config, prefix_cache=True, max_chunk=chunk, deterministic="off") as engine:
        traces = {mode: _behind_hits(engine, mode, ids, hits, _how(chunk), result) for mode in MODES}
    for tail, mask, compact in zip(hits.tails, traces["mask"].values(), traces["compact"].values(), strict=True):
        case = f"{hits.shared + tail} tokens behind a hit, {_how(chunk)}: compact and mask"
        same(result.findings, case, mask, compact)


def _compare_exact_hits(
    config: EngineConfig, chunk: int | None, ids: Sequence[int], hits: Beginning, whole: Traces, result: Level2
) -> None:
    with _engine(config, prefix_cache=True, prefix_replay="exact", max_chunk=chunk) as engine:
        for mode in MODES:
            for wish, trace in _behind_hits(engine, mode, ids, hits, f"exact, {_how(chunk)}", result).items():
                same(result.findings, f"{wish.name}, exact, {_how(chunk)}: and cold", whole[wish], trace)


def _behind_hits(
    engine: TracedEngine, mode: Mode, ids: Sequence[int], hits: Beginning, how: str, result: Level2
) -> dict[Wish, Trace]:
    """Each finds the same beginning, which another prompt computed before, and nothing else."""
    engine.llm.reset_prefix_cache()
    engine.run([hits.first(ids)])
    traces = {wish: engine.run([wish])[0] for wish in hits.tails_of(ids, mode)}
    for wish, trace in traces.items():
        start, hit = hit_of(hits.shared, len(wish.prompt), mode, hits.geometry)
        where, found = "(tokens skipped, run again)", (trace.cached, trace.replayed)
        result.findings.check("hits", f"{wish.name}, {how}", where, (start, hit - start), found)
    return traces


def _how(chunk: int | None) -> str:
    return "whole prompts" if chunk is None else f"chunks of {chunk}"


def _perplexity(trace: Trace) -> float:
    return math.exp(-math.fsum(trace.logprobs) / len(trace.logprobs))
