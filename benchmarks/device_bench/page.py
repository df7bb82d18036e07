"""Writes the tables and the picture of ``docs/explanation/gpu-speed.md`` from the result files of a device.

    cd benchmarks && python -m device_bench.page

It reads ``results/gpu-decode.json`` (``decode.py --cut-down --json``), ``gpu-drafts.json`` (that with ``--drafts``),
``gpu-layer.json`` (``layer.py --json``) and ``gpu-AREA.json`` (``kernels.py --area AREA --json``); what is not there is
said to be not measured.
"""  # fmt: skip

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from kernel_bench.cases import AREAS

from device_bench import aims
from device_bench.plot import Result, draw

RESULTS = Path(__file__).parents[1] / "results"
PAGE = Path(__file__).parents[2] / "docs/explanation/gpu-speed.md"
NONE = "Not measured yet."


def write() -> None:
    """Between ``<!-- figures: NAME -->`` and ``<!-- end -->``. Raises NoMatplotlib."""
    decode, layer, kernels = (_read(f"gpu-{name}.json") for name in ("decode", "layer", "dense"))
    tables = {"decode": steps(decode), "layer": layers(layer), "dense": products(kernels)}
    tables["drafts"] = steps(_read("gpu-drafts.json"))
    tables |= {name: products(_read(f"gpu-{name}.json"), with_op=True) for name in ("attn", "index", "sample")}
    areas = {area: _read(f"gpu-{area}.json") for area in AREAS}
    runs = "\n".join(f"* {area}: {_run(one)}" for area, one in areas.items() if one)
    tables |= {"aims": f"{aims.figures(areas)}\n\n{runs}", "behind": aims.behind(areas)}
    text = PAGE.read_text(encoding="utf-8")
    for name, table in tables.items():
        mark = f"<!-- figures: {name} -->"
        text = re.sub(f"{mark}.*?<!-- end -->", lambda _, new=f"{mark}\n{table}\n<!-- end -->": new, text, flags=re.S)
    PAGE.write_text(text, encoding="utf-8")
    draw(decode, layer, kernels, PAGE.with_suffix(".svg"))


def steps(result: Result | None) -> str:
    if result is None:
        return NONE
    rows = [
        f"| {row['batch']} | {_on(row['graphs'])} | {_on(row['overlap'])} | {row['step_us'] / 1e3:.2f} | "
        f"{row['device_busy_us'] / 1e3:.2f} | {row['idle_share']:.1%} | {row['tokens_per_s']:,.0f} | "
        f"{_host(row['host_us_per_step']) / 1e3:.2f} |"
        for row in sorted(result["rows"], key=lambda row: (row["batch"], not row["graphs"], not row["overlap"]))
    ]
    head = "| requests | graphs | overlap | step, ms | device busy, ms | idle | tokens/s | host work, ms |"
    context = result["rows"][0]["context"]
    drafts = f"{result['drafts']} drafts, " if result["drafts"] else ""
    said = f"{_where(result)}; {result['layers']} layers, {drafts}contexts of {context} tokens. {_idle(result)}"
    return _table(" ".join([said, *([result["note"]] if "note" in result else [])]), head, rows)


def layers(result: Result | None) -> str:
    if result is None:
        return NONE
    rows = [
        f"| {row['kind']} | {row['phase']} | {row['rows']} | {row['us']:,.0f} | {row['floor_us']:,.0f} | "
        f"{row['share']:.0%} |"
        for row in result["rows"]
    ]
    head = "| layer | phase | rows | µs | sum of floors, µs | share |"
    return _table(f"{_where(result)}, {_ceilings(result)}. {_idle(result)}", head, rows)


def products(result: Result | None, *, with_op: bool = False) -> str:
    """Kernels by their variant, or by op and variant, and by rows."""
    if result is None:
        return NONE
    sizes = sorted({case["rows"] for case in result["cases"]})
    rows = []
    for op, name in dict.fromkeys((case["op"], case["variant"]) for case in result["cases"]):
        mine = [case for case in result["cases"] if (case["op"], case["variant"]) == (op, name)]
        found = {case["rows"]: case for case in mine if "us" in case}
        cells = " | ".join(_cell(found.get(size), result["ceilings"]) for size in sizes)
        rows.append(f"| {f'{op} {name}'.strip() if with_op else name} | {cells} |")
    head = f"| µs, share of the floor | {' | '.join(f'{size} rows' for size in sizes)} |"
    return _table(_run(result), head, rows)


def _cell(case: Result | None, ceilings: Result) -> str:
    if case is None:
        return ""
    floor = 1e6 * max(case["bytes"] / ceilings["copy_bytes_per_s"], case["flop"] / ceilings["bf16_flop_per_s"])
    return f"{case['us']:.1f} ({floor / case['us']:.0%})"


def _table(said: str, head: str, rows: list[str]) -> str:
    return "\n".join([said, "", head, "| " + " | ".join(["---"] * (head.count("|") - 1)) + " |", *rows])


def _run(result: Result) -> str:
    """Where and when, the ceilings, and what else is to be known."""
    return ". ".join([f"{_where(result)}, {_ceilings(result)}", *([result["note"]] if "note" in result else [])])


def _where(result: Result) -> str:
    machine = result["machine"]
    card, date = machine.get("device", machine.get("card")), machine.get("date", result.get("date"))
    return f"{card}, torch {machine['torch']}, CUDA {machine['cuda']}, {date}"


def _ceilings(result: Result) -> str:
    copy, product = (result["ceilings"][name] / 1e12 for name in ("copy_bytes_per_s", "bf16_flop_per_s"))
    return f"copy {copy:.2f} TB/s, bf16 products {product:.0f} TFLOP/s"


def _idle(result: Result) -> str:
    if result.get("every_kernel"):
        return "Every kernel served, also those whose tests had not all passed then."
    plain = result.get("not_in_use")
    return f"Done by plain ops in this run: {', '.join(plain)}." if plain else "Every kernel served."


def _host(phases: dict[str, Any]) -> float:
    return float(sum(us for name, us in phases.items() if name != "wait"))


def _on(flag: bool) -> str:
    return "on" if flag else "off"


def _read(name: str) -> Result | None:
    path = RESULTS / name
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


if __name__ == "__main__":
    write()
