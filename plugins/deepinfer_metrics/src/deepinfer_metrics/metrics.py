"""The metrics of an engine in Prometheus' form, under the names of ``spec/engine.md`` 9.1.

What the core counts is read when a scraper asks, from one copy, so that its numbers fit each other; what only a step or
a request knows goes into histograms as it happens. Names that the engine cannot feed are left out, not 0:
docs/how-to/observe.md lists them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from deepinfer_core.interfaces import EngineView
    from deepinfer_core.types import EngineSnapshot, RequestReport, StepReport

STEP_BUCKETS = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
REQUEST_BUCKETS = (1e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
POOLS = ("main", "swa", "state", "draft")
UNIT_STATES = ("free", "cached", "held", "limbo")
REQUEST_PHASES = ("waiting", "prefill", "running", "zombie", "handoff")
COUNTERS: tuple[tuple[str, str, str], ...] = (
    ("di_preempt", "preemptions", "Sequences that gave their blocks back and run again."),
    ("di_hold", "holds", "Times that a sequence waited for a block."),
    ("di_abort", "aborts", "Sequences that were aborted."),
    ("di_prefix_queries", "prefix_queries", "Prompts that were looked up in the prefix cache."),
    ("di_prefix_hit_tokens", "prefix_hit_tokens", "Prompt tokens that the prefix cache had."),
    ("di_prefix_evict", "prefix_evictions", "Blocks that the prefix cache gave up."),
    ("di_budget_overrun", "budget_overruns", "Prefill steps that were longer than their budget of time."),
    ("di_event_ring_grow", "event_ring_grown", "Times that the ring of events was too small."),
)
"""Name without ``_total``, field of the core's counters, meaning."""
PHASE_NAMES = {"forward": "launch_forward"}
"""Phases that have another name there; ``total`` is the whole step."""
TOKENS = {
    "prefill": "tokens_prefill",
    "decode": "tokens_decode",
    "replayed": "prefix_replayed_tokens",
    "prefix_hit": "prefix_hit_tokens",
    "overrun": "overrun_rows",
    "drafted": "tokens_drafted",
    "accepted": "tokens_accepted",
}


class Metrics(Collector):
    """Of one engine, in a registry of its own."""

    def __init__(self, *, emulated: bool = False) -> None:
        self._marks = {"emulated": "true"} if emulated else {}
        self.registry = CollectorRegistry(auto_describe=False)
        self._engine: EngineView | None = None
        self._reasons: Counter[str] = Counter()

        def histogram(name: str, text: str, labels: tuple[str, ...] = (), buckets: Any = REQUEST_BUCKETS) -> Histogram:
            return Histogram(name, text, labels, registry=self.registry, buckets=buckets)

        self._steps = histogram(
            "di_step_seconds",
            "Host seconds of each phase of a step; total: of the step.",
            ("phase", "kind"),
            STEP_BUCKETS,
        )
        self._ttft = histogram("di_ttft_seconds", "From submission to the first token.")
        self._itl = histogram("di_itl_seconds", "Mean time between two tokens of a request.", (), STEP_BUCKETS)
        self._e2e = histogram("di_e2e_seconds", "From submission to the end.")
        self._queue = histogram("di_queue_seconds", "From submission to the first step.")
        self.registry.register(self)

    def ready(self, engine: EngineView) -> None:
        self._engine = engine

    def step(self, step: StepReport) -> None:
        self._steps.labels("total", step.kind).observe(step.seconds)
        for phase, seconds in step.phases.items():
            if seconds:
                self._steps.labels(PHASE_NAMES.get(phase, phase), step.kind).observe(seconds)

    def ended(self, request: RequestReport) -> None:
        self._reasons[request.finish_reason] += 1
        for histogram, seconds in ((self._queue, request.queue_s), (self._ttft, request.ttft_s)):
            if seconds is not None:
                histogram.observe(seconds)
        if request.itl_s is not None:
            self._itl.observe(request.itl_s)
        self._e2e.observe(request.total_s)

    def text(self) -> bytes:
        """All metrics as Prometheus reads them."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        """Called by the registry when a scraper asks."""
        yield self._build_info()
        reasons = CounterMetricFamily("di_requests_finished", "Requests that ended, by reason.", labels=["reason"])
        for reason, count in sorted(self._reasons.copy().items()):
            reasons.add_metric([reason], count)
        yield reasons
        if self._engine is not None:
            snapshot = self._engine.snapshot()
            yield from _of_stats(snapshot.stats)
            yield from _of_audit(snapshot)
            if snapshot.drafts.verified:
                yield from _of_drafts(snapshot.drafts)

    def _build_info(self) -> Metric:
        from deepinfer_contracts import CONTRACTS
        from deepinfer_core.plugins.discovery import discover

        contracts = ",".join(f"{name}:{info.layout_hash:016x}" for name, info in sorted(CONTRACTS.items()))
        plugins = ",".join(sorted({f"{item.distribution}=={item.version}" for item in discover()[0]}))
        labels = {"version": metadata.version("deepinfer-core"), "contracts": contracts, "plugins": plugins}
        labels |= self._marks
        info = GaugeMetricFamily("di_build_info", "What runs here.", labels=list(labels))
        info.add_metric(list(labels.values()), 1)
        return info


def _of_stats(stats: Any) -> Iterator[Metric]:
    steps = CounterMetricFamily("di_step", "Committed steps.", labels=["kind"])
    steps.add_metric(["prefill"], stats.steps_prefill)
    steps.add_metric(["decode"], stats.steps_decode)
    yield steps
    tokens = CounterMetricFamily("di_tokens", "Rows and tokens, by what they were for.", labels=["kind"])
    for kind, field in TOKENS.items():
        tokens.add_metric([kind], getattr(stats, field))
    yield tokens
    requests = GaugeMetricFamily("di_requests", "Sequences in the scheduler, by phase.", labels=["phase"])
    for phase in REQUEST_PHASES:
        requests.add_metric([phase], getattr(stats, phase))
    yield requests
    units = GaugeMetricFamily("di_pool_units", "Blocks and slots of the caches.", labels=["pool", "state"])
    for pool in POOLS:
        levels = getattr(stats, pool)
        if levels.total:
            for state in UNIT_STATES:
                units.add_metric([pool, state], getattr(levels, state))
    yield units
    for name, field, text in COUNTERS:
        yield CounterMetricFamily(name, text, value=getattr(stats, field))


def _of_audit(snapshot: EngineSnapshot) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "di_leak_audit", "Times that an engine without work was asked for all of its memory.", value=snapshot.audits
    )
    yield GaugeMetricFamily("di_leak", "1 if the last of these audits failed.", value=float(bool(snapshot.fault)))


def _of_drafts(drafts: Any) -> Iterator[Metric]:
    for name, counts, text in (
        ("di_spec_verified", drafts.verified, "Drafts that the model looked at, by place in a block."),
        ("di_spec_accepted", drafts.accepted, "Drafts that became part of the output, by place in a block."),
    ):
        family = CounterMetricFamily(name, text, labels=["position"])
        for position, count in enumerate(counts):
            family.add_metric([str(position)], count)
        yield family
    if drafts.confidence_error is not None:
        yield GaugeMetricFamily(
            "di_spec_confidence_error",
            "Mean distance between a draft's confidence and the chance that it is accepted.",
            value=drafts.confidence_error,
        )
