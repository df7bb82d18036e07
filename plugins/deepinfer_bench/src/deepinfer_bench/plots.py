"""Three pictures of a report; needs matplotlib, which nothing else here does."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deepinfer_bench.report import at
from deepinfer_bench.step_log import PHASES
from deepinfer_core.cli.streams import unwritable
from deepinfer_core.errors import LibraryMissing
from deepinfer_core.plugins.emulation import BANNER

NAMES = ("pareto.svg", "phases.svg", "roofline.svg")
SHARES = (("floor_share", "floors"), ("copy_share", "bytes alone"), ("matmul_share", "FLOP alone"))


def require_matplotlib() -> None:
    """Raise LibraryMissing before any work, where it is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise LibraryMissing(
            "plots need the package matplotlib",
            reason="it is not installed",
            remedy="pip install 'deepinfer-bench[plots]', or leave --plots out",
            details={"package": "matplotlib"},
        )


def draw(points: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """Write the pictures that ``points`` have figures for; their paths. Raises OutputError, LibraryMissing."""
    require_matplotlib()
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "deepinfer", "svg.fonttype": "none", "font.size": 9, "axes.axisbelow": True})
    from matplotlib import pyplot

    written = []
    measured = [point for point in points if not point.get("error")]
    for name, figure_of in zip(NAMES, (_pareto, _phases, _roofline), strict=True):
        figure, axes = pyplot.subplots(figsize=(7.5, 4.6), layout="constrained")
        try:
            if figure_of(axes, measured):
                if any(point.get("emulated") for point in measured):
                    figure.suptitle(BANNER)
                written.append(_save(figure, folder / name))
        finally:
            pyplot.close(figure)
    return written


def _save(figure: Any, path: Path) -> Path:
    temporary = path.with_name(f".{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(temporary, format="svg", metadata={"Date": None})
        temporary.replace(path)
    except OSError as err:
        temporary.unlink(missing_ok=True)
        raise unwritable(str(path), err) from err
    return path


def _pareto(axes: Any, points: Sequence[Mapping[str, Any]]) -> bool:
    """Speed of one request against that of all: a line for each prompt length and number of drafts."""
    lines: dict[str, list[tuple[float, float, int]]] = {}
    for point in points:
        user, whole = at(point, "decode.user_tokens_per_s"), at(point, "decode.tokens_per_s")
        if user is not None and whole is not None:
            label = f"{point['prompt_tokens']} tokens, {point['draft_tokens']} drafts"
            lines.setdefault(label, []).append((user, whole, point["batch"]))
    for label, found in lines.items():
        found.sort(key=lambda item: item[2])
        axes.plot([item[0] for item in found], [item[1] for item in found], marker="o", label=label)
        for user, whole, batch in found:
            axes.annotate(str(batch), (user, whole), textcoords="offset points", xytext=(4, 4), fontsize=7)
    axes.set_xlabel("tokens/s of one request")
    axes.set_ylabel("tokens/s of all")
    axes.set_title("Batch sizes stand at the points")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    if lines:
        axes.legend()
    return bool(lines)


def _phases(axes: Any, points: Sequence[Mapping[str, Any]]) -> bool:
    """Where the host's time of a step goes, in percent: a bar for each point and segment, its milliseconds above."""
    import matplotlib as mpl

    bars = [
        (f"{point['name']}\n{segment}", found["phase_us"])
        for point in points
        for segment in ("prefill", "decode")
        if (found := point.get(segment)) and found["kept"]
    ]
    wholes = [sum(split.values()) for _, split in bars]
    bottoms = [0.0] * len(bars)
    for place, phase in enumerate((*PHASES, "other")):
        heights = [100 * split[phase] / whole for (_, split), whole in zip(bars, wholes, strict=True)]
        if any(heights):
            axes.bar(range(len(bars)), heights, bottom=bottoms, label=phase, color=mpl.colormaps["tab20"](place))
            bottoms = [a + b for a, b in zip(bottoms, heights, strict=True)]
    for place, whole in enumerate(wholes):
        axes.text(place, 101, f"{whole * 1e-3:.3g} ms", ha="center", fontsize=7)
    axes.set_xticks(range(len(bars)), [name for name, _ in bars], rotation=45, ha="right")
    axes.set_ylabel("% of a step")
    if bars:
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    return bool(bars)


def _roofline(axes: Any, points: Sequence[Mapping[str, Any]]) -> bool:
    """What share of a step the least possible work would take."""
    bars = [
        (f"{point['name']}\n{segment}", at(point, f"{segment}.roofline"))
        for point in points
        for segment in ("prefill", "decode")
        if at(point, f"{segment}.roofline")
    ]
    width = 0.8 / len(SHARES)
    for place, (key, label) in enumerate(SHARES):
        where = [i + (place - 1) * width for i in range(len(bars))]
        axes.bar(where, [100 * found[key] for _, found in bars], width, label=label)
    axes.set_xticks(range(len(bars)), [name for name, _ in bars], rotation=45, ha="right")
    axes.set_ylabel("% of the measured time")
    if bars:
        axes.legend()
    return bool(bars)
