"""Figures as text for people and as JSON for tools."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from .pipeline import PHASES
from .targets import Verdict

HEADER = (
    f"{'case':20} {'rows':>6} {'K':>2} " + " ".join(f"{p[:9]:>9}" for p in (*PHASES,)) + f" {'total':>9} {'p99':>9}"
    f" {'s+c+e/seq':>10} {'pack/seq':>9}"
)


def line(row: dict[str, Any]) -> str:
    """One case, microseconds."""
    phases = " ".join(f"{row['us'][p]:9.2f}" for p in PHASES)
    return (
        f"{row['name']:20} {row['rows']:6.0f} {row['k']:2d} {phases} {row['total_us']:9.2f} {row['p99_us']:9.2f}"
        f" {row['core_us_a_seq']:10.4f} {row['pack_us_a_seq']:9.4f}"
    )


def details(row: dict[str, Any]) -> str:
    """What else is worth saying about a case."""
    parts = [f"submit {row['submit_us']:.1f} us"]
    if row.get("abort_us"):
        parts.append(f"abort {row['abort_us']:.2f} us a request")
    if row.get("prefill_steps"):
        parts.append(f"{row['prefill_steps']:.0f} prefill steps of {row['prefill_us']:.0f} us")
    for key in ("preemptions", "holds", "overrun_rows", "prefix_hit_tokens", "prefix_replayed_tokens"):
        if row.get(key):
            parts.append(f"{key.replace('_', ' ')} {row[key]:.0f}")
    parts.append(
        f"pool {100 * row['pool_used']:.0f} % used, rss {row['rss_mib']:.0f} MiB ({row['rss_mib_grown']:+.1f})"
    )
    parts.append(f"{row['tokens_a_step']:.1f} tokens a step")
    return f"{'':20} " + ", ".join(parts)


def target_lines(found: list[Verdict]) -> list[str]:
    out = [f"{'target':52} {'limit':>8} {'measured':>9} {'best run':>9}"]
    for v in found:
        measured = "-" if v.measured is None else f"{v.measured:.3f}"
        best = "" if v.best is None else f"{v.best:.3f}"
        unit = v.unit if v.machine is None else f"a plain loop of that length: {v.machine:.3f}"
        out.append(f"{v.what:52} {v.limit:8.2f} {measured:>9} {best:>9}  {v.word:7} {unit}")
    return out


def target_rows(found: list[Verdict]) -> list[dict[str, Any]]:
    return [{**asdict(v), "verdict": v.word} for v in found]
