"""Kernels of the cuda backend at the released model's sizes: time, share of the floor, and the alternatives.

    python benchmarks/kernels.py [--area NAME ...] [--op TEXT] [--rows N ...] [--no-others] [--seconds S] [--json FILE]
    python benchmarks/kernels.py --json benchmarks/results/gpu-{area}.json

The second form writes what the page on speed is made of. The record is written after each case, so a run that is
stopped keeps what it has. "x" behind an alternative is how many times as long as ours it takes; ``BEHIND`` marks a case
where the best of them is faster, by more than what repeats.

The floor of a case is the larger of its bytes over the copy rate and its FLOP over the rate of a bf16 product, both
measured in the same run. A case that needs less than two microseconds at the floor is bound by launch and latency; its
share says little. Exits with 1 if a case fails to run.
"""  # fmt: skip

from __future__ import annotations

import argparse
import datetime
import gc
import json
import platform
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from kernel_bench.cases import AREAS, Case, load
from kernel_bench.ceilings import Ceilings, measure_ceilings
from kernel_bench.harness import CASE_SECONDS, input_sets, measure
from kernel_bench.verdicts import REPEATS, best_other

from deepinfer_cuda import unproven

KEPT_SHARE = 0.6
"""Of the device's memory that torch may keep from case to case: taking it again costs more than a measurement."""


def run(case: Case, with_others: bool, seconds: float) -> dict[str, Any]:
    """Median microseconds of ours and of each alternative; an error text where one does not run."""
    sets = input_sets(int(case.bytes))
    result: dict[str, Any] = {"op": case.op, "variant": case.variant, "rows": case.rows, "sets": sets}
    result |= {"bytes": case.bytes, "flop": case.flop, "target": case.target, "others": {}}
    for name, make in {"": case.make, **(case.others if with_others else {})}.items():
        try:
            timing = measure([make(i) for i in range(sets)], seconds)
            entry: Any = {"us": timing.us, "least": timing.least, "p90": timing.p90}
        except Exception as exc:  # one case that fails must not lose the others
            traceback.print_exc()
            entry = {"error": f"{type(exc).__name__}: {exc}".splitlines()[0]}
        if torch.cuda.memory_reserved() > KEPT_SHARE * torch.cuda.get_device_properties().total_memory:
            torch.cuda.empty_cache()
        if name:
            result["others"][name] = entry
        else:
            result |= entry
    return result


def line(result: dict[str, Any], ceilings: Ceilings) -> str:
    """One row of the table."""
    floor = ceilings.floor_us(result["bytes"], result["flop"])
    head = f"{result['op']:<22} {result['variant']:<34} {result['rows']:>7}"
    if "error" in result:
        return f"{head}  FAILED {result['error']}"
    share = f"{100 * floor / result['us']:5.0f} %" if floor >= 2.0 else "      -"
    others = "  ".join(
        f"{name} {other['us']:.2f} ({other['us'] / result['us']:.2f}x)" if "us" in other else f"{name} failed"
        for name, other in result["others"].items()
    )
    mark = "  BEHIND" if (best := best_other(result)) is not None and best[1] < result["us"] * (1 - REPEATS) else ""
    return f"{head} {result['us']:>9.2f} us  floor {floor:>8.2f} {share}  {others}{mark}"


def write(
    file: Path, machine: dict[str, Any], ceilings: Ceilings, idle: list[str], results: list[dict[str, Any]]
) -> None:
    """All that is known so far."""
    record = {
        "machine": machine,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "ceilings": {"copy_bytes_per_s": ceilings.copy, "bf16_flop_per_s": ceilings.bf16},
        "not_in_use": idle,
        "cases": results,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="Time the kernels of the cuda backend.")
    parser.add_argument("--area", nargs="+", choices=AREAS, default=list(AREAS))
    parser.add_argument("--op", help="only cases whose op or variant contains this")
    parser.add_argument("--rows", nargs="+", type=int, help="sizes instead of each area's own")
    parser.add_argument("--no-others", action="store_true", help="leave the alternatives out")
    parser.add_argument("--seconds", type=float, default=CASE_SECONDS, help="device time of a case (%(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file; {area} in its name: a file each")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks/kernels.py needs a CUDA device, and torch sees none here", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    gc.freeze()  # the harness collects what a graph kept, not the modules
    card = torch.cuda.get_device_name()
    machine = {"card": card, "torch": torch.__version__, "cuda": torch.version.cuda, "host": platform.machine()}
    ceilings = measure_ceilings()
    print(f"{card}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    print(f"copy {ceilings.copy / 1e12:.2f} TB/s, bf16 {ceilings.bf16 / 1e12:.0f} TFLOP/s")
    results: list[dict[str, Any]] = []
    idle = sorted(unproven.OPS)
    if idle:
        print(f"timed, and not in use yet: {', '.join(idle)}")
    with unproven.all_serve():
        for area, case in [(name, case) for name in options.area for case in load([name], options.rows)]:
            if options.op and options.op not in f"{case.op} {case.variant}":
                continue
            results.append({"area": area, **run(case, not options.no_others, options.seconds)})
            print(line(results[-1], ceilings), flush=True)
            if options.json:
                file = Path(str(options.json).replace("{area}", area))
                kept = [one for one in results if file == options.json or one["area"] == area]
                write(file, machine, ceilings, idle, kept)
    return 1 if any("error" in r for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
