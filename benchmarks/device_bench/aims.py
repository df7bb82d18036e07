"""Aims and figures of every kernel: what share of its floor each reaches, how much is missing, and who is faster.

From the result files of ``kernels.py``, one an area, and from ``results/aims.toml``, which says of each kernel that is
short of its aim, or behind an alternative, why, and what was tried. A size whose floor is below two microseconds is
bound by launch and latency: its time is given instead of a share, and no aim applies.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernel_bench.verdicts import REPEATS, best_other, floor_us

from device_bench.plot import Result

NOTES = Path(__file__).parents[1] / "results/aims.toml"
LEAST_FLOOR = 2.0
"""Microseconds."""
Key = tuple[str, str]


def figures(results: Mapping[str, Result | None], notes: Sequence[Mapping[str, str]] | None = None) -> str:
    """The table of aims: a row for each op and variant, a column for each size."""
    cases = [
        dict(case, ceilings=result["ceilings"]) for result in results.values() if result for case in result["cases"]
    ]
    if not cases:
        return "Not measured yet."
    sizes = sorted(
        {case["rows"] for case in cases if case["target"] is not None and case["op"] != "cache.load_segments"}
    )
    known, used, rows = load_notes() if notes is None else notes, list[str](), []
    for key, mine in by_kernel(cases):
        aims = {case["target"] for case in mine} - {None}
        if not aims:
            continue
        short = shortfalls(mine)
        why = note(known, key, "short") if short else None
        if why and why not in used:
            used.append(why)
        found = {case["rows"]: case for case in mine}
        cells = [_cell(found.get(size)) for size in sizes]
        missing = f"{max(missing for _, missing in short):.2f}" if short else ""
        mark = f" [{used.index(why) + 1}]" if why else ""
        rows.append(f"| {_name(key)} | {_aims(mine)} | {' | '.join(cells)} | {missing}{mark} |")
    head = f"| kernel | aim | {' | '.join(f'{size:,} rows' for size in sizes)} | most that is missing |"
    text = [head, _rule(head), *rows, "", *(f"{at}. {why}" for at, why in enumerate(used, 1))]
    return "\n".join(text)


def behind(results: Mapping[str, Result | None], notes: Sequence[Mapping[str, str]] | None = None) -> str:
    """Every case whose best alternative of the same run takes less time, by more than what repeats."""
    known = load_notes() if notes is None else notes
    rows, compared = [], 0
    for case in all_cases(results):
        other = best_other(case)
        compared += other is not None and "us" in case
        if other is not None and is_behind(case):
            key, (name, us) = (case["op"], case["variant"]), other
            cells = _name(key), f"{case['rows']:,}", f"{case['us']:.1f}", f"{name} {us:.1f}", f"{case['us'] / us:.2f}"
            rows.append(f"| {' | '.join(cells)} | {note(known, key, 'behind') or ''} |")
    if not compared:
        return "Not measured yet."
    said = f"Of {compared} cases with an alternative in the same run, {len(rows)} are slower than the best one."
    if not rows:
        return said
    head = "| kernel | rows | µs | alternative, µs | ratio | why |"
    return "\n".join([said, "", head, _rule(head), *rows])


def all_cases(results: Mapping[str, Result | None]) -> list[dict[str, Any]]:
    """Every case, with the ceilings of its run."""
    known = [result for result in results.values() if result]
    return [dict(case, ceilings=result["ceilings"]) for result in known for case in result["cases"]]


def is_behind(case: Mapping[str, Any]) -> bool:
    other = best_other(case)
    return other is not None and "us" in case and other[1] < case["us"] * (1 - REPEATS)


def shortfalls(cases: Iterable[Mapping[str, Any]]) -> list[tuple[int, float]]:
    """Rows, and what is missing to the aim, of the sizes that have one and are not bound by launch."""
    found = []
    for case in cases:
        floor = floor_us(case, case["ceilings"])
        if case["target"] is not None and "us" in case and floor >= LEAST_FLOOR:
            missing = round(case["target"] - floor / case["us"], 2)
            if missing > 0:
                found.append((case["rows"], missing))
    return found


def by_kernel(cases: Iterable[Mapping[str, Any]]) -> list[tuple[Key, list[Mapping[str, Any]]]]:
    grouped: dict[Key, list[Mapping[str, Any]]] = {}
    for case in cases:
        op, variant = case["op"], case["variant"]
        if op == "moe.experts":  # the number of experts touched differs from size to size
            variant = variant.split(",")[0]
        grouped.setdefault((op, variant), []).append(case)
    return list(grouped.items())


def load_notes() -> list[Mapping[str, str]]:
    return list(tomllib.loads(NOTES.read_text(encoding="utf-8"))["note"]) if NOTES.is_file() else []


def note(notes: Sequence[Mapping[str, str]], key: Key, kind: str) -> str | None:
    """Of the first note on this op, and variant where it names a part of one, what it says of ``kind``."""
    for one in notes:
        if one["op"] == key[0] and one.get("variant", "") in key[1] and kind in one:
            return one[kind]
    return None


def _cell(case: Mapping[str, Any] | None) -> str:
    if case is None or "us" not in case:
        return "" if case is None else "failed"
    floor = floor_us(case, case["ceilings"])
    if floor < LEAST_FLOOR:
        return f"{case['us']:.1f} µs"
    share = floor / case["us"]
    return f"**{share:.2f}**" if shortfalls([case]) else f"{share:.2f}"


def _aims(cases: Iterable[Mapping[str, Any]]) -> str:
    """``0.80``, or one aim for few rows and one for many."""
    aims: dict[float, int] = {}
    for case in sorted(cases, key=lambda case: case["rows"]):
        if case["target"] is not None:
            aims.setdefault(case["target"], case["rows"])
    return "; ".join(
        f"{aim:.2f}" if at == 0 else f"{aim:.2f} from {rows:,}" for at, (aim, rows) in enumerate(aims.items())
    )


def _name(key: Key) -> str:
    return " ".join(part for part in key if part)


def _rule(head: str) -> str:
    return "| " + " | ".join(["---"] * (head.count("|") - 1)) + " |"
