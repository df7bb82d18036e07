"""How long the commands that need no model take.

    python benchmarks/startup.py [--repeat N] [--json FILE]

Prints the machine, medians and limits; writes JSON with --json. Wall time is what a person waits; processor time hardly
moves when the machine is busy with other work, so compare the two before blaming the program.
"""  # fmt: skip

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Name -> arguments after `python`, limit in ms (None: for comparison only).
CASES: dict[str, tuple[list[str], float | None]] = {
    "python": (["-c", "pass"], None),
    "import click": (["-c", "import click"], None),
    "import deepinfer_core": (["-c", "import deepinfer_core"], None),
    "deepinfer --help": (["-m", "deepinfer_core.cli", "--help"], 150.0),
    "deepinfer --version": (["-m", "deepinfer_core.cli", "--version"], 300.0),
    "deepinfer plugins": (["-m", "deepinfer_core.cli", "plugins"], 300.0),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        # A cache of our own: compiled files are used wherever the sources lie, and nothing is written beside them.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("DEEPINFER_")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["PYTHONPYCACHEPREFIX"] = cache
        times = measure(environment, options.repeat)
    report = {"machine": machine(), "repeat": options.repeat, "unit": "ms", "cases": times}
    print(f"{report['machine']['processor']}, {report['machine']['cores']} cores, Python {platform.python_version()}")
    for name, row in times.items():
        limit = f"limit {row['limit']:.0f}" if row["limit"] else ""
        print(f"{name:24} wall {row['wall']:6.0f} ms  (least {row['least']:4.0f})  cpu {row['cpu']:6.0f} ms  {limit}")
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


def measure(environment: dict[str, str], repeat: int) -> dict[str, dict[str, float | None]]:
    """Times of whole processes, cases in turn so that a busy moment touches all of them; medians."""
    wall: dict[str, list[float]] = {name: [] for name in CASES}
    cpu: dict[str, list[float]] = {name: [] for name in CASES}
    for turn in range(repeat + 1):
        for name, (arguments, _) in CASES.items():
            began, used = time.perf_counter(), child_seconds()
            subprocess.run([sys.executable, *arguments], env=environment, stdout=subprocess.DEVNULL, check=True)
            if turn:  # the first turn compiles
                wall[name].append((time.perf_counter() - began) * 1e3)
                cpu[name].append((child_seconds() - used) * 1e3)
    return {
        name: {
            "wall": statistics.median(wall[name]),
            "least": min(wall[name]),
            "cpu": statistics.median(cpu[name]),
            "limit": limit,
        }
        for name, (_, limit) in CASES.items()
    }


def child_seconds() -> float:
    """Processor time of all finished children."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def machine() -> dict[str, object]:
    processor = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                processor = line.partition(":")[2].strip()
                break
    return {"processor": processor, "cores": os.cpu_count(), "system": platform.system()}


if __name__ == "__main__":
    sys.exit(main())
