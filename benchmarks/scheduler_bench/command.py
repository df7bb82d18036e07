"""The command line of ``benchmarks/scheduler.py``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import against, comparisons, machine, overlap, plot, report
from .cases import Case, decode_cases, other_cases, smoke
from .measure import measure, run_once
from .targets import verdicts


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="scheduler.py", description="What a step of the scheduler costs on the host; no device is needed."
    )
    out.add_argument("--only", action="append", default=[], metavar="NAME", help="a group or a case, as in --list")
    out.add_argument("--smoke", action="store_true", help="tiny sizes: shows that everything runs, no figures to quote")
    out.add_argument("--steps", type=int, help="steps of a run, instead of each case's own")
    out.add_argument("--runs", type=int, help="runs of a case, instead of each case's own")
    out.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    out.add_argument(
        "--plot", type=Path, metavar="SVG", help="draw the figures of --json FILE, of an earlier run, and stop"
    )
    out.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    out.add_argument("--against", metavar="REV", help="run the same traces on that git revision too, in turns")
    out.add_argument("--max-regression", type=float, metavar="RATIO", help="with --against: exit 1 above it, as 1.15")
    out.add_argument(
        "--peer",
        action="append",
        default=[],
        choices=comparisons.MODES,
        help="run that mode on this core, on plain Python and on $DEEPINFER_PEER_ENGINE, one JSON object a line",
    )
    out.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    out.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    out.add_argument("--list", action="store_true", help="print the cases and stop")
    return out


def chosen(options: argparse.Namespace) -> list[Case]:
    """The cases that the options name. Raises SystemExit for a name that is none."""
    cases = [*decode_cases(), *other_cases()]
    if options.smoke:
        cases = smoke(cases)
    names = {c.name for c in cases} | {c.group for c in cases}
    if unknown := [name for name in options.only if name not in names]:
        raise SystemExit(f"scheduler.py: no case or group {unknown[0]!r}; --list shows them")
    if options.only:
        cases = [c for c in cases if c.name in options.only or c.group in options.only]
    changes = {k: getattr(options, k) for k in ("steps", "runs") if getattr(options, k) is not None}
    return [dataclasses.replace(c, **changes) for c in cases] if changes else cases


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    cases = chosen(options)
    if options.plot:
        return draw(options.json, options.plot)
    if options.list:
        for c in cases:
            print(f"{c.name:20} {c.group}")
        return 0
    if options.worker:
        return work(cases, options.seed)
    if options.peer:
        with machine.quiet():
            return comparisons.stream(options.peer, options.smoke)
    where = machine.describe()
    print(
        f"{where['processor']}, {where['cores']} cores, load {where['load_1min']}, Python {where['python']},"
        f" deepinfer-native {where['native']}; medians in microseconds",
    )
    if options.against:
        return against_revision(options, cases)
    rows, absent = run(cases)
    found = verdicts({row["name"]: row for row in rows})
    print(*report.target_lines(found), sep="\n")
    compared, hidden = [], []
    if not options.only:
        with machine.quiet():
            compared = comparisons.table(options.smoke)
        print(*comparisons.lines(compared), sep="\n")
        hidden = overlap.table(options.smoke)
        print(*overlap.lines(hidden), sep="\n")
    if options.json:
        result: dict[str, Any] = {
            "machine": where | {"load_1min_after": machine.describe()["load_1min"]},
            "smoke": options.smoke,
            "unit": "us",
            "cases": rows,
            "not_run": absent,
            "comparisons": compared,
            "overlap": hidden,
            "targets": report.target_rows(found),
        }
        write(options.json, result)
    return int(options.check and any(v.word == "miss" for v in found))


def draw(source: Path | None, target: Path) -> int:
    if source is None or not source.is_file():
        raise SystemExit("scheduler.py: --plot needs --json FILE with the figures of an earlier run")
    try:
        plot.draw(source, target)
    except plot.NoMatplotlib as error:
        raise SystemExit(f"scheduler.py: {error}") from error
    return 0


def work(cases: list[Case], seed: int) -> int:
    """One run of each case, a JSON object a line: what `against.compare` reads."""
    with machine.quiet():
        for case in cases:
            if not case.missing:
                print(json.dumps({"name": case.name, **run_once(case, seed)}), flush=True)
    return 0


def against_revision(options: argparse.Namespace, cases: list[Case]) -> int:
    """Print what each case costs here and there."""
    try:
        commit, site = against.build(options.against)
    except against.CannotBuild as error:
        raise SystemExit(f"scheduler.py: cannot build {options.against}: {error}") from error
    passed = ["--smoke"] if options.smoke else []
    passed += ["--steps", str(options.steps)] if options.steps else []
    found, one_sided = against.compare(site, [c.name for c in cases], passed, options.runs or 5)
    print(f"{'case':20} {'here us':>10} {commit[:8]:>10} {'ratio':>7} {'best':>7}")
    worse = []
    for c in found:
        is_worse = options.max_regression is not None and c.regresses(options.max_regression)
        worse += [c.name] if is_worse else []
        print(
            f"{c.name:20} {c.ours_us:10.2f} {c.theirs_us:10.2f} {c.ratio:7.3f} {c.best_ratio:7.3f}"
            + ("  regression" if is_worse else "")
        )
    for name in one_sided:
        print(f"{name:20} not compared: one of the two cannot run it")
    if options.json:
        write(options.json, {"machine": machine.describe(), "against": commit, "cases": [asdict(c) for c in found]})
    if worse:
        print(f"scheduler.py: slower than {commit[:8]} by more than {options.max_regression}: {', '.join(worse)}")
    return int(bool(worse))


def write(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def run(cases: list[Case]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Measure and print; (rows, why others were not run)."""
    absent = {c.name: c.missing for c in cases if c.missing}
    rows = measure([c for c in cases if not c.missing], lambda text: print(f"\r{text:60}", end="", file=sys.stderr))
    print(f"\r{'':60}\r", end="", file=sys.stderr)
    print(report.HEADER)
    for row in rows:
        print(report.line(row))
        if row["group"] not in ("decode", "inputs", "validation"):
            print(report.details(row))
    for name, why in absent.items():
        print(f"{name:20} not run: {why}")
    return rows, absent
