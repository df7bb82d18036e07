"""Figures of a device as a picture; needs matplotlib, which nothing else here does. ``page`` calls it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

COLOURS = ("#3b6ea5", "#7aa6c2", "#b8cfe0", "#c2703d", "#e0a458", "#8c8c8c", "#5b8c5a")


class NoMatplotlib(RuntimeError):
    """matplotlib is not installed."""


Result = dict[str, Any]


def draw(decode: Result | None, layer: Result | None, kernels: Result | None, target: Path) -> None:
    """Steps of the cut-down model, layers against their floors, dense products: those that were measured.

    Raises NoMatplotlib.
    """
    try:
        import matplotlib as mpl
    except ModuleNotFoundError as error:
        raise NoMatplotlib("the picture needs matplotlib: pip install matplotlib") from error
    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "deepinfer", "svg.fonttype": "none", "font.size": 9, "axes.axisbelow": True})
    from matplotlib import pyplot

    parts = [(part, found) for part, found in ((steps, decode), (layers, layer), (products, kernels)) if found]
    figure, axes = pyplot.subplots(1, len(parts), figsize=(5 * len(parts), 4.6), layout="constrained", squeeze=False)
    for place, (part, found) in zip(axes[0], parts, strict=True):
        part(place, found)
    figure.savefig(target, format="svg", metadata={"Date": None})
    pyplot.close(figure)


def steps(axes: Any, result: Result) -> None:
    """Share of a step in which the device does nothing."""
    ways = sorted({(row["graphs"], row["overlap"]) for row in result["rows"]}, reverse=True)
    batches = sorted({row["batch"] for row in result["rows"]})
    width = 0.8 / len(ways)
    for place, (way, colour) in enumerate(zip(ways, COLOURS, strict=False)):
        idle = {row["batch"]: row for row in result["rows"] if (row["graphs"], row["overlap"]) == way}
        at = [i + place * width for i, batch in enumerate(batches) if batch in idle]
        values = [100 * idle[batch]["idle_share"] for batch in batches if batch in idle]
        label = f"graphs {_on(way[0])}, overlap {_on(way[1])}"
        axes.bar(at, values, width, color=colour, label=label)
        for x, batch, value in zip(at, [b for b in batches if b in idle], values, strict=True):
            axes.text(x, value, f"{idle[batch]['step_us'] / 1e3:.1f}", ha="center", va="bottom", fontsize=6)
    axes.set_xticks([i + 0.4 - width / 2 for i in range(len(batches))], [str(batch) for batch in batches])
    axes.axhline(5, color=COLOURS[5], linestyle=":", label="aim: 5 %")
    axes.set(
        xlabel="requests", ylabel="device idle, % of a step", title=f"{result['layers']} layers; numbers: ms a step"
    )
    axes.legend(fontsize=7)


def layers(axes: Any, result: Result) -> None:
    """A layer of each kind against the sum of the floors of its ops."""
    kinds = list(dict.fromkeys(row["kind"] for row in result["rows"]))
    sizes = list(dict.fromkeys((row["phase"], row["rows"]) for row in result["rows"]))
    height = 0.8 / len(sizes)
    for place, (size, colour) in enumerate(zip(sizes, COLOURS, strict=False)):
        found = {row["kind"]: row for row in result["rows"] if (row["phase"], row["rows"]) == size}
        at = [i + place * height for i, kind in enumerate(kinds) if kind in found]
        axes.barh(
            at,
            [100 * found[k]["share"] for k in kinds if k in found],
            height,
            color=colour,
            label=f"{size[0]}, {size[1]} rows",
        )
    axes.set_yticks([i + 0.4 - height / 2 for i in range(len(kinds))], kinds)
    axes.set(xlabel="floors of its ops, % of a layer's time", xlim=(0, 100), title="one layer in a graph")
    axes.grid(alpha=0.3, axis="x")
    axes.legend(fontsize=7)


def products(axes: Any, result: Result) -> None:
    """Dense products: share of the floor by the number of rows."""
    ceilings = result["ceilings"]
    names: dict[str, list[tuple[int, float]]] = {}
    for case in result["cases"]:
        if "us" in case:
            floor = 1e6 * max(case["bytes"] / ceilings["copy_bytes_per_s"], case["flop"] / ceilings["bf16_flop_per_s"])
            name = case["variant"].rpartition(" ")[0]
            names.setdefault(name, []).append((case["rows"], 100 * floor / case["us"]))
    for place, (name, points) in enumerate(names.items()):
        style = ("o-", "s--", "^:")[place // len(COLOURS) % 3]
        axes.plot(
            *zip(*sorted(points), strict=True), style, color=COLOURS[place % len(COLOURS)], label=name, markersize=4
        )
    axes.set(xscale="log", xlabel="rows", ylabel="% of the floor", ylim=(0, 110), title="dense products")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=6, ncols=2)


def _on(flag: bool) -> str:
    return "on" if flag else "off"
