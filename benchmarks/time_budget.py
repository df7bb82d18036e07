"""The longest gap between two tokens of a running request while a long prompt arrives, by ``target_itl_ms``.

    python benchmarks/time_budget.py [--targets 0,800,400,200] [--prompt 1500] [--tokens 120] [--json FILE]

One request decodes; after five of its tokens a long prompt arrives. Without a target (0) the prompt waits for the next
attempt point (70 decode steps after the last prefill) and then runs whole, while the first request waits for it. With
one, the prompt is cut into chunks that leave room for a decode step between two of them. What the first request gains,
the long prompt pays: its time to the first token is printed too. Figures are the median of ``--repeats`` runs. The
machine's load is printed: other work makes all figures worse.
"""  # fmt: skip

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from pathlib import Path
from typing import Any

from decode import machine, numbers, prompts

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.requests.prompts import inputs_of
from deepinfer_core.requests.runs import Stream

FIRST_TOKENS = 5


def run(llm: LLM, prompt: int, tokens: int, vocab: int, seed: int) -> dict[str, float]:
    """Milliseconds: the longest and the median gap of the request that was there first, and the other's first token."""
    first, late = prompts(1, 32, vocab, seed)[0], prompts(1, prompt, vocab, seed)[0]
    params = [SamplingParams(max_tokens=n, temperature=0.0, ignore_eos=True) for n in (tokens, 2)]
    times: list[list[float]] = [[], []]
    stream = Stream(
        llm.run(
            inputs_of([first, late], params),
            streaming=True,
            is_ready=lambda: len(times[0]) >= FIRST_TOKENS,
        )
    )
    arrived = 0.0
    for chunk in stream:
        now = time.perf_counter()
        times[chunk.index] += [now] * len(chunk.token_ids)
        if not arrived and len(times[0]) >= FIRST_TOKENS:
            arrived = now
        if chunk.output is not None and chunk.output.error is not None:
            raise SystemExit(f"request {chunk.index} failed: {chunk.output.error}")
    gaps = [after - before for before, after in itertools.pairwise(times[0])]
    return {
        "longest_gap_ms": max(gaps) * 1e3,
        "median_gap_ms": statistics.median(gaps) * 1e3,
        "late_first_token_ms": (times[1][0] - arrived) * 1e3,
    }


def measure(target: int, args: argparse.Namespace) -> dict[str, Any]:
    """One row of the table."""
    settings: dict[str, Any] = {"target_itl_ms": target} if target else {}
    with LLM(args.model, backend=args.backend, seed=0, num_threads=args.threads, **settings) as llm:
        vocab = min(llm.assembly.model.vocab_size, 1500)
        run(llm, 64, 8, vocab, 99)  # warm up
        before = llm.built.engine.core.stats()
        runs = [run(llm, args.prompt, args.tokens, vocab, seed) for seed in range(args.repeats)]
        after = llm.built.engine.core.stats()
    row: dict[str, Any] = {"target_ms": target or None}
    row.update({name: round(statistics.median(r[name] for r in runs), 1) for name in runs[0]})
    row["prefill_steps"] = round((after.steps_prefill - before.steps_prefill) / args.repeats, 1)
    row["budget_overruns"] = after.budget_overruns - before.budget_overruns
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="checkpoint directory; default: the shipped one")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--targets", type=numbers, default=[0, 800, 400, 200], help="milliseconds; 0 = no target")
    parser.add_argument("--prompt", type=int, default=1500, help="tokens of the late prompt")
    parser.add_argument("--tokens", type=int, default=120, help="tokens of the first request")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    where = machine()
    print(", ".join(f"{k} {v}" for k, v in where.items()))
    print(f"{'target ms':>9} {'longest gap':>11} {'median gap':>10} {'late token':>10} {'chunks':>7} {'overruns':>8}")
    rows = []
    for target in args.targets:
        row = measure(target, args)
        rows.append(row)
        print(
            f"{row['target_ms'] or '-':>9} {row['longest_gap_ms']:11.1f} {row['median_gap_ms']:10.1f}"
            f" {row['late_first_token_ms']:10.1f} {row['prefill_steps']:7.1f} {row['budget_overruns']:8d}",
            flush=True,
        )
    if args.json:
        args.json.write_text(json.dumps({"machine": where, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
