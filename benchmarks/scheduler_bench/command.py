"""The command line of ``benchmarks/scheduler.py``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from . import machine, report
from .cases import Case, decode_cases, other_cases, smoke
from .measure import measure
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
    out.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
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
    if options.list:
        for c in cases:
            print(f"{c.name:16} {c.group}")
        return 0
    where = machine.describe()
    print(
        f"{where['processor']}, {where['cores']} cores, load {where['load_1min']}, Python {where['python']},"
        f" deepinfer-native {where['native']}; medians in microseconds",
    )
    rows, absent = run(cases)
    found = verdicts({row["name"]: row for row in rows})
    print(*report.target_lines(found), sep="\n")
    if options.json:
        result: dict[str, Any] = {
            "machine": where | {"load_1min_after": machine.describe()["load_1min"]},
            "smoke": options.smoke,
            "unit": "us",
            "cases": rows,
            "not_run": absent,
            "targets": report.target_rows(found),
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(options.check and any(v.word == "miss" for v in found))


def run(cases: list[Case]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Measure and print; (rows, why others were not run)."""
    absent = {c.name: c.missing for c in cases if c.missing}
    rows = measure([c for c in cases if not c.missing], lambda text: print(f"\r{text:60}", end="", file=sys.stderr))
    print(f"\r{'':60}\r", end="", file=sys.stderr)
    print(report.HEADER)
    for row in rows:
        print(report.line(row))
        if row["group"] not in ("decode", "inputs"):
            print(report.details(row))
    for name, why in absent.items():
        print(f"{name:16} not run: {why}")
    return rows, absent
