"""One point: warm-up, the prefill segment, the decode segment, and only then the profiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from attrs import field, frozen

from deepinfer_bench.ceilings import Ceilings, roofline
from deepinfer_bench.disturbances import COLLECT_EVERY, KINDS, Collections, Disturbances
from deepinfer_bench.formulas import FULL_ACCEPTANCE, acceptance, full_acceptance_rate, user_rate
from deepinfer_bench.profiled import profile_steps
from deepinfer_bench.run import Bench, Round
from deepinfer_bench.segment import Segment
from deepinfer_bench.steady import Settling, SteadyRule, settle
from deepinfer_bench.workload import Prompts, Shape, arrivals, digest

SPARE_STEPS = 4
"""Steps that are in flight beside those that are counted."""


@frozen
class Plan:
    """How a point is measured. ``steps`` 0: no decode segment."""

    steps: int = 128
    rounds: int = 1
    """Rounds of prompts in the prefill segment, each with prompts of its own."""
    warm_up_rounds: int = 2
    """At most, of the same shape, before the first that counts."""
    profile_steps: int = 0
    gc_every: int = COLLECT_EVERY
    rule: SteadyRule = field(factory=SteadyRule)

    @property
    def round_rule(self) -> SteadyRule:
        return SteadyRule(block=1, within=0.1, most=self.warm_up_rounds)

    def tokens(self, shape: Shape) -> int:
        """Tokens of each answer, more than its steps can give: none ends inside the window."""
        if not self.steps:
            return 1
        steps = self.rule.most + self.steps + self.profile_steps + SPARE_STEPS
        return steps * (1 + shape.draft_tokens) + 1

    def as_record(self) -> dict[str, Any]:
        return {
            "decode_steps": self.steps,
            "prefill_rounds": self.rounds,
            "warm_up": "graphs of all sizes where the backend has graphs; then rounds of the same shape until "
            f"{self.round_rule.text} rounds; the first decode steps until {self.rule.text} steps",
            "dropped": f"intervals that meet {', '.join(KINDS)}, a recording of graphs, a step of the other kind, or "
            "fewer requests than the batch; counted by reason, not smoothed",
            "flush_and_shuffle": "this engine keeps no expert statistics and moves no experts: both counts are zero",
            "garbage_collection": Collections(Disturbances(), int, self.gc_every).policy,
            "percentiles": "linear between neighbours, over kept intervals",
            "profiler": f"{self.profile_steps} steps, after all measured segments",
            "phases": "host time; two steps in flight share an interval",
        }


def measure_point(
    bench: Bench,
    shape: Shape,
    prompts: Prompts,
    plan: Plan,
    ceilings: Ceilings | None,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """The record of a point (``report.schema.json``). Raises the error of a request that fails."""
    events = Disturbances()
    with bench, Collections(events, bench.clock, plan.gc_every) as collections:
        names = (f"warm {i}" for i in count())
        warm = settle(plan.round_rule, lambda: _round(bench, prompts.make(shape, next(names)), collections))
        record: dict[str, Any] = {
            "name": shape.name,
            "batch": shape.batch,
            "prompt_tokens": shape.prompt_tokens,
            "draft_tokens": shape.draft_tokens,
            "prefill": None,
            "decode": None,
            "warm_up": {"rounds": warm.count, "steady": warm.is_steady},
        }
        if plan.steps:
            _decode_point(bench, shape, prompts, plan, ceilings, events, collections, record, tell)
        else:
            _prefill_point(bench, shape, prompts, plan, ceilings, events, collections, record, tell)
        record["collections"] = {"count": len(events.events), "seconds": _spent(events)}
    return record


def _round(bench: Bench, prompts: Sequence[Sequence[int]], collections: Collections) -> float:
    """Seconds that prompts take, each to its first token."""
    with Round(bench, prompts, 1, collections) as round_:
        begin = bench.clock()
        round_.finish()
        return (bench.clock() - begin) * 1e-9


def _prefill_point(
    bench: Bench, shape: Shape, prompts: Prompts, plan: Plan, ceilings: Ceilings | None, events: Disturbances,
    collections: Collections, record: dict[str, Any], tell: Callable[[str], None],
) -> None:  # fmt: skip
    segment: Segment | None = None
    rounds, ids = [], []
    for number in range(plan.rounds):
        ids = prompts.make(shape, f"round {number}")
        with Round(bench, ids, 1, collections) as round_:
            round_.finish()
            one = Segment.of("prefill", bench.log.take(), events)
        rounds.append(sum(interval.ns for interval in one.intervals) * 1e-6)
        segment = one if segment is None else segment.joined(one)
        tell(f"{shape.name}: prefill round {number + 1} of {plan.rounds}, {rounds[-1]:.1f} ms")
    record["arrivals"], record["prompts_sha256"] = arrivals(shape, 1), digest(ids)
    record["prefill"] = None if segment is None else _prefill_record(bench, segment, shape, rounds, ceilings)
    if plan.profile_steps:
        record["profile"] = {"prefill": _profile_prefill(bench, shape, prompts, collections, segment)}


def _decode_point(
    bench: Bench, shape: Shape, prompts: Prompts, plan: Plan, ceilings: Ceilings | None, events: Disturbances,
    collections: Collections, record: dict[str, Any], tell: Callable[[str], None],
) -> None:  # fmt: skip
    ids, tokens = prompts.make(shape, "round 0"), plan.tokens(shape)
    record["arrivals"], record["prompts_sha256"] = arrivals(shape, tokens), digest(ids)
    with Round(bench, ids, tokens, collections) as round_:
        round_.prefill()
        prefill = Segment.of("prefill", bench.log.take(), events)
        whole_ms = sum(interval.ns for interval in prefill.intervals) * 1e-6
        record["prefill"] = _prefill_record(bench, prefill, shape, [whole_ms], ceilings)
        tell(f"{shape.name}: prefill {whole_ms:.1f} ms")
        settling = settle(plan.rule, lambda: _one_step(bench, round_))
        bench.log.take()
        context = shape.prompt_tokens + _longest(round_)
        before = bench.llm.draft_report.as_record()
        round_.decode(plan.steps)
        after = bench.llm.draft_report.as_record()
        segment = Segment.of("decode", bench.log.take(), events, shape.batch)
        context = (context + shape.prompt_tokens + _longest(round_)) // 2
        drafts = acceptance(before, after) if shape.draft_tokens else None
        record["decode"] = _decode_record(bench, segment, shape, settling, drafts, context, ceilings)
        tell(f"{shape.name}: {len(segment.kept)} of {len(segment.intervals)} decode steps kept")
        if plan.profile_steps:
            decode = profile_steps(
                _device_type(bench), plan.profile_steps, lambda: round_.decode(plan.profile_steps), _median_s(segment)
            )
    if plan.profile_steps:
        prefilled = _profile_prefill(bench, shape, prompts, collections, prefill)
        record["profile"] = {"decode": decode, "prefill": prefilled}


def _one_step(bench: Bench, round_: Round) -> float:
    round_.decode(1)
    last, now = bench.log.stamps[-2:]
    return (now.ns - last.ns) * 1e-9


def _profile_prefill(
    bench: Bench, shape: Shape, prompts: Prompts, collections: Collections, segment: Segment | None
) -> dict[str, Any]:
    with Round(bench, prompts.make(shape, "profiled"), 1, collections) as round_:
        steps = max(1, len(segment.intervals) if segment is not None else 1)
        return profile_steps(_device_type(bench), steps, round_.finish, _median_s(segment))


def _prefill_record(
    bench: Bench, segment: Segment, shape: Shape, rounds: Sequence[float], ceilings: Ceilings | None
) -> dict[str, Any]:
    seconds = segment.seconds
    floors = getattr(bench.llm.assembly.model, "floors", None)
    share = None
    if floors is not None and ceilings is not None and segment.kept:
        # As if each prompt ran by itself, so weights count once for each: an upper bound where steps hold several.
        parts = floors(shape.prompt_tokens, shape.prompt_tokens, prefill=True, kept=_kept_rows(bench))
        whole = sum(rounds) / len(rounds) * 1e-3
        share = {**roofline([*parts] * shape.batch, ceilings, whole), "of": "a round, each prompt by itself"}
    return {
        **segment.as_record(),
        "round_ms": list(rounds),
        "prompt_tokens_per_s": segment.rows / seconds if seconds else None,
        "roofline": share,
    }


def _decode_record(
    bench: Bench, segment: Segment, shape: Shape, settling: Settling, drafts: dict[str, object] | None, context: int,
    ceilings: Ceilings | None,
) -> dict[str, Any]:  # fmt: skip
    seconds, kept = segment.seconds, len(segment.kept)
    rate = segment.tokens / seconds if seconds else None
    whole_s = sum(interval.ns for interval in segment.intervals) * 1e-9
    floors = getattr(bench.llm.assembly.model, "floors", None)
    share = None
    if floors is not None and ceilings is not None and kept:
        rows = segment.rows // kept
        parts = floors(rows, context, prefill=False, kept=0)
        share = {**roofline(parts, ceilings, seconds / kept), "of": f"a step of {rows} rows, without its drafts"}
    return {
        **segment.as_record(),
        "settling": {"steps": settling.count, "steady": settling.is_steady},
        "drift": _drift(segment),
        "context_tokens": context,
        "tokens_per_s": rate,
        "tokens_per_s_whole_window": sum(interval.tokens for interval in segment.intervals) / whole_s,
        "user_tokens_per_s": None if rate is None else user_rate(rate, shape.batch),
        "full_acceptance": {
            "tokens_per_s": full_acceptance_rate(kept / seconds, shape.batch, shape.draft_tokens) if seconds else None,
            "assumption": FULL_ACCEPTANCE,
            "formula": "steps a second * batch * (1 + drafts) / cp, cp = 1",
        },
        "acceptance": drafts,
        "roofline": share,
    }


def _drift(segment: Segment) -> float | None:
    """Mean kept step of the last quarter over that of the first: contexts grow, and clocks fall."""
    quarter = len(segment.kept) // 4
    if not quarter:
        return None
    first, last = segment.kept[:quarter], segment.kept[-quarter:]
    return sum(i.ns for i in last) / sum(i.ns for i in first)


def _longest(round_: Round) -> int:
    return max(len(request.token_ids) for request in round_.requests)


def _kept_rows(bench: Bench) -> int:
    """Prompt rows that the decoder half runs (setting ``replay_mode``); 0: all."""
    kept: int = bench.engine.core.config.replay_keep if bench.llm.config.replay_mode == "compact" else 0
    return kept


def _median_s(segment: Segment | None) -> float | None:
    p50 = None if segment is None else segment.step_ms()["p50"]
    return None if p50 is None else p50 * 1e-3


def _device_type(bench: Bench) -> str:
    kind: str = bench.llm.assembly.backend.capabilities.device_type
    return kind


def _spent(events: Disturbances) -> float:
    return sum(event.end_ns - event.begin_ns for event in events.events) * 1e-9
