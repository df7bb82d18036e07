"""Other schedulers in the same run: plain Python, a bare C loop, and an external one where there is one."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

from .peers import c_loop, drive, external
from .peers.ours import OurCore
from .peers.plain_python import PlainPython

MODES = ("decode", "churn", "admit", "probe")
POINTS = ((1, 0, 0), (64, 0, 0), (256, 0, 0), (1024, 0, 0), (256, 5, 2), (1024, 5, 2))  # requests, K, accepted
TINY = ((1, 0, 0), (4, 5, 2))


def schedulers() -> dict[str, drive.Open]:
    """Name -> how to open it."""
    found: dict[str, drive.Open] = {"core": OurCore, "plain-python": PlainPython}
    if external.is_named():
        found["external"] = external.open_external
    return found


def table(is_tiny: bool) -> list[dict[str, Any]]:
    """Schedule, commit, emit and recycle in microseconds a step, for each point and scheduler; they take turns."""
    points, steps, runs = (TINY, 20, 1) if is_tiny else (POINTS, 100, 3)
    bare = c_loop.measure([(n, accepted + 1) for n, _, accepted in points], steps=steps if is_tiny else 400)
    rows = []
    for at, (n, k, accepted) in enumerate(points):
        found: dict[str, list[float]] = {}
        for _ in range(runs):
            for name, open_peer in schedulers().items():
                row = drive.decode(open_peer, n, k, accepted, steps)
                found.setdefault(name, []).append(row["total_us"] - row["us"]["pack"])
        times = {name: round(statistics.median(us), 2) for name, us in found.items()}
        if bare:
            times["c-loop"] = bare[at]["total_us"]
        rows.append({"seqs": n, "k": k, "accepted": accepted, "us": times})
    return rows


def lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The table as text, each scheduler beside its ratio to the core."""
    names = list(rows[0]["us"])
    yield "schedule + commit + emit + recycle, us a step (times the core's)"
    yield f"{'requests':>8} {'K':>2} " + " ".join(f"{name:>20}" for name in names)
    for row in rows:
        ours = row["us"]["core"]
        shown = (f"{us:10.2f} ({us / ours:6.2f}x)" for us in row["us"].values())
        yield f"{row['seqs']:8d} {row['k']:2d} " + " ".join(f"{text:>20}" for text in shown)


def stream(modes: list[str], is_tiny: bool) -> int:
    """Every mode on every scheduler, a JSON object a line. 1 when the external one cannot be used."""
    code = 0
    for name, open_peer in schedulers().items():
        try:
            for mode in modes:
                for row in measurements(mode, open_peer, is_tiny):
                    print(json.dumps({"scheduler": name, **row}), flush=True)
        except external.NoPeer as error:
            print(f"scheduler.py: {error}", file=sys.stderr)
            code = 1
    if not external.is_named():
        print(f"scheduler.py: {external.ABSENT}", file=sys.stderr)
    return code


def measurements(mode: str, open_peer: drive.Open, is_tiny: bool) -> Iterator[dict[str, Any]]:
    steps = 20 if is_tiny else 400
    makers: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
        "decode": lambda: (
            drive.decode(open_peer, n, k, accepted, steps) for n, k, accepted in (TINY if is_tiny else POINTS)
        ),
        "churn": lambda: iter([drive.churn(open_peer, 8 if is_tiny else 256, 30 if is_tiny else 600)]),
        "admit": lambda: (drive.admit(open_peer, n, 4 if is_tiny else 64) for n in (512, 8192)),
        "probe": lambda: drive.probe(open_peer),
    }
    return makers[mode]()
