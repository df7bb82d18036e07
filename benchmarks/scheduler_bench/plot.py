"""The figures of one result file as a picture; needs matplotlib, which nothing else here does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .pipeline import PHASES

COLOURS = ("#3b6ea5", "#7aa6c2", "#b8cfe0", "#c2703d", "#e0a458", "#8c8c8c")


class NoMatplotlib(RuntimeError):
    """matplotlib is not installed."""


def draw(source: Path, target: Path) -> None:
    """Time a sequence over the number of sequences, and the phases of each scenario. Raises NoMatplotlib."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError as error:
        raise NoMatplotlib("the picture needs matplotlib: pip install matplotlib") from error
    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "deepinfer", "svg.fonttype": "none", "font.size": 9, "axes.axisbelow": True})
    from matplotlib import pyplot

    result = json.loads(source.read_text(encoding="utf-8"))
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    scaling(left, result)
    phases(right, result)
    where = result["machine"]
    figure.suptitle(f"Host time of a scheduler step. {where['processor']}, load {where['load_1min']}", fontsize=10)
    figure.savefig(target, format="svg", metadata={"Date": None})
    pyplot.close(figure)


def scaling(axes: Any, result: dict[str, Any]) -> None:
    rows = [r for r in result["cases"] if r["group"] == "decode"]
    for k, colour, label in ((0, COLOURS[0], "K = 0"), (5, COLOURS[3], "K = 5, 3 tokens")):
        points = sorted((r["seqs"], r["core_us_a_seq"]) for r in rows if r["k"] == k)
        axes.plot(*zip(*points, strict=True), "o-", color=colour, label=label) if points else None
    axes.axhline(0.06, color=COLOURS[0], linestyle=":", label="target, K = 0")
    axes.axhline(0.10, color=COLOURS[3], linestyle=":", label="target, K = 5")
    for name, style in (("plain-python", "s--"), ("c-loop", "x--"), ("external", "^--")):
        points = [
            (c["seqs"], c["us"][name] / c["seqs"]) for c in result["comparisons"] if c["k"] == 0 and name in c["us"]
        ]
        if points:
            axes.plot(*zip(*points, strict=True), style, color=COLOURS[5], label=f"{name}, K = 0", markersize=4)
    axes.set(xscale="log", yscale="log", xlabel="sequences", ylabel="schedule + commit + emit, µs a sequence")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def phases(axes: Any, result: dict[str, Any]) -> None:
    rows = [r for r in result["cases"] if r["group"] != "decode" or r["seqs"] == 256][::-1]
    left = [0.0] * len(rows)
    for phase, colour in zip(PHASES, COLOURS, strict=True):
        widths = [r["us"][phase] for r in rows]
        axes.barh([r["name"] for r in rows], widths, left=left, color=colour, label=phase)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set(xlabel="µs a decode step, median of each phase")
    axes.grid(alpha=0.3, axis="x")
    axes.legend(fontsize=7)
