"""Decode speed through the whole engine, and against computing the prefix anew for each token.

    python benchmarks/decode.py [--batches 1,32] [--contexts 128,512,1024,1536] [--tokens 32] [--json FILE]

For each batch size and context, prompts of that many random tokens are prefilled and ``--tokens`` more are generated,
greedily, the end token ignored. A step is the time from the moment when every request has token j to the moment when
every request has token j + 1; the median counts. The time until every request has its first token is what each further
token would cost if the prefix were computed anew. The machine's load is printed: other work makes all figures worse.
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


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="checkpoint directory; default: the shipped one")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--batches", type=numbers, default=[1, 32])
    parser.add_argument("--contexts", type=numbers, default=[128, 512, 1024, 1536])
    parser.add_argument("--tokens", type=int, default=32, help="decode steps a run")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    with LLM(args.model, backend=args.backend, seed=0, num_threads=args.threads) as llm:
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
    if args.json:
        args.json.write_text(json.dumps({"machine": where, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
