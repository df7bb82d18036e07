"""Decode speed through the whole engine, and against computing the prefix anew for each token.

    python benchmarks/decode.py [--batches 1,32] [--contexts 128,512,1024,1536] [--tokens 32] [--overlap on|off|both]
                                [--json FILE]
    python benchmarks/decode.py --cut-down --backend cuda [--layers N] [--batches 1,8,64,256] [--drafts 0|5]
                                [--graphs on|off|both] [--overlap on|off|both] [--all-kernels] [--json FILE]

For each batch size and context, prompts of that many random tokens are prefilled and ``--tokens`` more are generated,
greedily, the end token ignored. A step is the time from the moment when every request has token j to the moment when
every request has token j + 1; the median counts. The time until every request has its first token is what each further
token would cost if the prefix were computed anew. The machine's load is printed: other work makes all figures worse.

``--cut-down`` runs the released model with ``--layers`` layers on random weights instead, and tells how long the device
is idle in a step (``device_bench``); ``--graphs`` and ``--overlap`` choose the ways to run, ``both`` all of them.

``--overlap both`` runs two engines in turns, one with two steps in flight and one without, and prints how their steps
compare: the median over the turns of the ratio of their medians.
"""  # fmt: skip

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from deepinfer_core import LLM, SamplingParams


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load_1min": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def prompts(batch: int, context: int, vocab: int, seed: int) -> list[list[int]]:
    """Random token ids, BOS first; different in each request and repeat, so that no prefix is shared."""
    draw = random.Random(f"{seed}-{batch}-{context}")
    return [[0, *(draw.randrange(3, vocab) for _ in range(context - 1))] for _ in range(batch)]


def arrivals(llm: LLM, ids: list[list[int]], tokens: int) -> list[float]:
    """Seconds from the start until every request has its first, second, ... token."""
    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    last, have = [0.0] * tokens, [0] * len(ids)
    begin = time.perf_counter()
    for chunk in llm.stream(ids, params):
        now = time.perf_counter() - begin
        for _ in chunk.token_ids:
            last[have[chunk.index]] = now
            have[chunk.index] += 1
        if chunk.output is not None and chunk.output.error is not None:
            raise SystemExit(f"request {chunk.index} failed: {chunk.output.error}")
    return last


def measure(llm: LLM, batch: int, context: int, tokens: int, repeats: int, vocab: int) -> dict[str, Any]:
    """Median milliseconds a decode step and a whole-prefix step take, tokens a second, and the ratio."""
    steps, anew = [], []
    for repeat in range(repeats):
        times = arrivals(llm, prompts(batch, context, vocab, repeat), tokens + 1)
        anew.append(times[0])
        steps += [after - before for before, after in itertools.pairwise(times)]
    step, recompute = statistics.median(steps), statistics.median(anew)
    return {
        "batch": batch,
        "context": context,
        "step_ms": round(step * 1e3, 3),
        "tokens_per_s": round(batch / step, 1),
        "recompute_ms": round(recompute * 1e3, 3),
        "ratio": round(recompute / step, 2),
    }


def compare_overlap(on: LLM, off: LLM, batch: int, context: int, args: Any, vocab: int) -> dict[str, Any]:
    """Both engines in turns, so that other work on the machine meets both."""
    steps: dict[str, list[float]] = {"on": [], "off": []}
    for turn in range(args.turns):
        ids = prompts(batch, context, vocab, turn)
        for name, llm in (("on", on), ("off", off)) if turn % 2 else (("off", off), ("on", on)):
            times = arrivals(llm, ids, args.tokens + 1)
            # The first step of two in flight brings no token; the one after the last brings no step.
            steps[name].append((times[-1] - times[0]) / args.tokens)
    ratios = [x / y for x, y in zip(steps["on"], steps["off"], strict=True)]
    row: dict[str, Any] = {"batch": batch, "context": context, "turns": args.turns}
    for name, values in steps.items():
        row[f"{name}_step_ms"] = round(statistics.median(values) * 1e3, 3)
        row[f"{name}_tokens_per_s"] = round(batch / statistics.median(values), 1)
    return row | {"ratio": round(statistics.median(ratios), 4), "spread": [round(x, 4) for x in sorted(ratios)]}


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def open_llm(args: Any, overlap: bool) -> LLM:
    return LLM(args.model, backend=args.backend, seed=0, num_threads=args.threads, overlap=overlap)


def both(args: Any) -> None:
    with open_llm(args, True) as on, open_llm(args, False) as off:
        vocab = min(on.assembly.model.vocab_size, 1500)
        for llm in (on, off):
            arrivals(llm, prompts(1, 64, vocab, 99), 4)  # warm up
        where, rows = machine(), []
        print(", ".join(f"{k} {v}" for k, v in where.items()))
        print(f"{'batch':>5} {'context':>7} {'on ms':>9} {'off ms':>9} {'on/off':>7}")
        for batch, context in itertools.product(args.batches, args.contexts):
            row = compare_overlap(on, off, batch, context, args, vocab)
            rows.append(row)
            print(
                f"{batch:5d} {context:7d} {row['on_step_ms']:9.2f} {row['off_step_ms']:9.2f} {row['ratio']:7.3f}",
                flush=True,
            )
        phases = {name: llm.times.as_record() for name, llm in (("on", on), ("off", off))}
    write(args, {"machine": where, "overlap": rows, "phases_ns": phases})


def write(args: Any, report: dict[str, Any]) -> None:
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="checkpoint directory; default: the shipped one")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--batches", type=numbers, default=[1, 32])
    parser.add_argument("--contexts", type=numbers, default=[128, 512, 1024, 1536])
    parser.add_argument("--tokens", type=int, default=32, help="decode steps a run")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--overlap", choices=("on", "off", "both"), default="on", help="two steps in flight, or one")
    parser.add_argument("--turns", type=int, default=7, help="of each engine, with --overlap both")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--cut-down", action="store_true", help="layers of the released model, on random weights")
    parser.add_argument("--layers", type=int, default=0, help="of the cut-down model; 0: as many as fit")
    parser.add_argument("--experts", type=int, default=384, help="routed experts of the cut-down model")
    parser.add_argument("--drafts", type=int, default=0, help="draft tokens of the cut-down model")
    parser.add_argument("--graphs", choices=("on", "off", "both"), default="on")
    parser.add_argument("--all-kernels", action="store_true", help="also those that do not serve yet (unproven.py)")
    parser.add_argument("--mode", choices=("released", "exact"), default="released")
    parser.add_argument("--kv-memory", default="8GiB", help="of the cut-down model")
    args = parser.parse_args()
    if args.cut_down:
        from device_bench.decode import run

        run(args, lambda report: write(args, report))
        return
    if args.overlap == "both":
        both(args)
        return
    with open_llm(args, args.overlap == "on") as llm:
        vocab = min(llm.assembly.model.vocab_size, 1500)
        arrivals(llm, prompts(1, 64, vocab, 99), 4)  # warm up
        where = machine()
        print(", ".join(f"{k} {v}" for k, v in where.items()))
        print(f"{'batch':>5} {'context':>7} {'step ms':>9} {'tokens/s':>9} {'anew ms':>9} {'ratio':>7}")
        rows = []
        for batch in args.batches:
            for context in args.contexts:
                row = measure(llm, batch, context, args.tokens, args.repeats, vocab)
                rows.append(row)
                print(
                    f"{batch:5d} {context:7d} {row['step_ms']:9.2f} {row['tokens_per_s']:9.1f}"
                    f" {row['recompute_ms']:9.1f} {row['ratio']:7.1f}",
                    flush=True,
                )
    write(args, {"machine": where, "rows": rows})


if __name__ == "__main__":
    main()
