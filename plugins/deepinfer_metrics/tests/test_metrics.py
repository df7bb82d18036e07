"""The text of the metrics, read back by Prometheus' own parser."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from deepinfer_metrics.metrics import Metrics

NAMES = {
    *("di_step_seconds", "di_step", "di_tokens", "di_requests", "di_requests_finished"),
    *("di_ttft_seconds", "di_itl_seconds", "di_e2e_seconds", "di_queue_seconds", "di_pool_units"),
    *("di_preempt", "di_hold", "di_abort", "di_prefix_queries", "di_prefix_hit_tokens", "di_prefix_evict"),
    *("di_budget_overrun", "di_event_ring_grow", "di_build_info", "di_leak_audit", "di_leak"),
}


def samples(metrics: Metrics) -> dict[str, float]:
    """``name{label=value}`` -> value."""
    found = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_names_are_those_of_the_contract_and_no_others(view: Any) -> None:
    metrics = Metrics()
    metrics.ready(view)
    families = {f.name for f in text_string_to_metric_families(metrics.text().decode()) if f.type != "unknown"}
    assert {name for name in families if not name.endswith("_created")} == NAMES


def test_counters_and_levels_are_those_of_the_core(view: Any) -> None:
    metrics = Metrics()
    metrics.ready(view)
    view.stats.steps_decode, view.stats.tokens_prefill, view.stats.running = 7, 40, 3
    view.stats.preemptions, view.stats.prefix_hit_tokens = 2, 16
    found = samples(metrics)
    assert found["di_step_total{kind=decode}"] == 7
    assert found["di_tokens_total{kind=prefill}"] == 40
    assert found["di_tokens_total{kind=prefix_hit}"] == found["di_prefix_hit_tokens_total"] == 16
    assert found["di_requests{phase=running}"] == 3
    assert found["di_preempt_total"] == 2
    assert found["di_pool_units{pool=main,state=free}"] == 6
    assert not any("pool=draft" in name for name in found)  # a pool that is not there has no levels
    assert (found["di_leak"], found["di_leak_audit_total"]) == (0, 2)
    view.leak = "block 3"
    assert samples(metrics)["di_leak"] == 1


def test_histograms_have_steps_and_requests(view: Any, make_step: Any, make_end: Any) -> None:
    metrics = Metrics()
    metrics.ready(view)
    metrics.step(make_step("prefill", 0.5, forward=0.4, wait=0.0))
    metrics.step(make_step("decode", 0.25))
    metrics.ended(make_end("stop"))
    metrics.ended(make_end("abort", 0.1, None, None))
    found = samples(metrics)
    assert found["di_step_seconds_sum{kind=prefill,phase=total}"] == 0.5
    assert found["di_step_seconds_sum{kind=prefill,phase=launch_forward}"] == 0.4
    assert not any("phase=wait}" in name for name in found)
    counts = {name: found[f"di_{name}_seconds_count"] for name in ("queue", "ttft", "itl", "e2e")}
    assert counts == {"queue": 2, "ttft": 1, "itl": 1, "e2e": 2}
    assert found["di_requests_finished_total{reason=stop}"] == found["di_requests_finished_total{reason=abort}"] == 1


def test_drafts_are_counted_by_place_where_there_are_any(view: Any) -> None:
    metrics = Metrics()
    metrics.ready(view)
    view.drafts = SimpleNamespace(verified=(5, 4), accepted=(3, 1), confidence_error=0.2)
    found = samples(metrics)
    assert found["di_spec_verified_total{position=1}"] == 4
    assert found["di_spec_accepted_total{position=0}"] == 3
    assert found["di_spec_confidence_error"] == 0.2


def test_two_engines_have_registries_of_their_own(view: Any, make_end: Any) -> None:
    one, other = Metrics(), Metrics()
    one.ended(make_end())
    assert "di_requests_finished_total{reason=stop}" in samples(one)
    assert "di_requests_finished_total{reason=stop}" not in samples(other)


def test_before_the_engine_is_ready_there_are_no_numbers_of_it() -> None:
    found = samples(Metrics())
    [info] = [name for name in found if name.startswith("di_build_info{")]
    assert all(part in info for part in ("version=", "contracts=EventBatch:", "deepinfer-metrics=="))
    assert not any(name.startswith(("di_step_total", "di_pool_units")) for name in found)
