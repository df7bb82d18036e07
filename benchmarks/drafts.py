"""What speculation gains or costs through the whole engine, and what coupled verification costs in acceptance.

    python benchmarks/drafts.py [--batches 1,8] [--drafts 1,2,4] [--temperatures 0,0.8] [--tokens 48] [--turns 3]
                                [--coupling-trials 20000] [--json FILE]

Each setting runs the same prompts (pieces of the source text of a standard module) in turns with an engine without
drafts, so that other work on the machine meets both; the speed-up is the median over the turns of the ratio of output
tokens a second. Below 1 drafts cost time: a row of a step is not free, and the draft head runs as well.

The table of couplings needs no model: target q and drafter p are softmaxes of the same random logits, p after Gaussian
noise, and the figures are the share of accepted drafts over many trials.
"""  # fmt: skip

from __future__ import annotations

import argparse
import inspect
import itertools
import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from deepinfer_core import LLM, SamplingParams

COUPLINGS = [(0.2, 1.0), (0.2, 3.0), (0.5, 3.0), (1.0, 3.0)]
"""(standard deviation of the noise in the drafter's logits, that of the logits themselves)."""
WIDTH = 200


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_1min": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def prompts(llm: LLM, batch: int, turn: int) -> list[list[int]]:
    """Pieces of 64 tokens of source text, others in each turn."""
    ids = llm.get_tokenizer().encode(inspect.getsource(argparse))
    return [ids[at : at + 64] for at in range((turn * batch) * 80, (turn * batch + batch) * 80, 80)]


def tokens_per_s(llm: LLM, ids: list[list[int]], tokens: int, temperature: float) -> float:
    """Of the decode steps: from the moment when every request has its first token."""
    params = [
        SamplingParams(max_tokens=tokens + 1, temperature=temperature, ignore_eos=True, seed=i) for i in range(len(ids))
    ]
    have, begin, counted = [0] * len(ids), 0.0, 0
    for chunk in llm.stream(ids, params):
        if chunk.output is not None and chunk.output.error is not None:
            raise SystemExit(f"request {chunk.index} failed: {chunk.output.error}")
        if begin:
            counted += len(chunk.token_ids)
        have[chunk.index] += len(chunk.token_ids)
        if not begin and all(have):
            begin = time.perf_counter()
    return counted / (time.perf_counter() - begin)


def compare(plain: LLM, drafting: LLM, batch: int, temperature: float, args: Any) -> dict[str, Any]:
    before = drafting.draft_report
    rates: dict[str, list[float]] = {"plain": [], "drafts": []}
    for turn in range(args.turns):
        ids = prompts(plain, batch, turn)
        order = (("plain", plain), ("drafts", drafting))
        for name, llm in order if turn % 2 else order[::-1]:
            rates[name].append(tokens_per_s(llm, ids, args.tokens, temperature))
    report = drafting.draft_report
    verified, accepted = (
        [b - a for a, b in zip(getattr(before, name) or [0] * 16, getattr(report, name), strict=False)]
        for name in ("verified", "accepted")
    )
    steps = report.request_steps - before.request_steps
    return {
        "batch": batch,
        "temperature": temperature,
        "plain_tokens_per_s": round(statistics.median(rates["plain"]), 1),
        "tokens_per_s": round(statistics.median(rates["drafts"]), 1),
        "speed_up": round(statistics.median(b / a for a, b in zip(rates["plain"], rates["drafts"], strict=True)), 3),
        "tokens_a_step": round((report.output_tokens - before.output_tokens) / max(steps, 1), 3),
        "rows_a_step": round(1 + sum(verified) / max(steps, 1), 3),
        "acceptance": [round(a / v, 3) if v else None for a, v in zip(accepted, verified, strict=True)],
    }


def coupling(trials: int) -> list[dict[str, Any]]:
    """Accepted share by rejection (1 - TV), by Gumbel coupling, and its lower bound (1 - TV) / (1 + TV)."""
    rows = []
    for sigma, sharpness in COUPLINGS:
        draw = np.random.default_rng(17)
        overlap, same = [], []
        for _ in range(trials):
            logits = sharpness * draw.normal(size=WIDTH)
            q, p = softmax(logits), softmax(logits + sigma * draw.normal(size=WIDTH))
            noise = -np.log(-np.log(draw.random(WIDTH)))
            overlap.append(float(np.minimum(p, q).sum()))
            same.append(int(np.argmax(np.log(q) + noise) == np.argmax(np.log(p) + noise)))
        bound = float(np.mean([x / (2 - x) for x in overlap]))
        rows.append(
            {
                "sigma": sigma,
                "sharpness": sharpness,
                "rejection": round(float(np.mean(overlap)), 3),
                "coupled": round(float(np.mean(same)), 3),
                "lower_bound": round(bound, 3),
            }
        )
    return rows


def softmax(x: Any) -> Any:
    values = np.exp(x - x.max())
    return values / values.sum()


def listed(kind: Any) -> Any:
    return lambda text: [kind(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="checkpoint directory; default: the shipped one")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--batches", type=listed(int), default=[1, 8])
    parser.add_argument("--drafts", type=listed(int), default=[1, 2, 4])
    parser.add_argument("--temperatures", type=listed(float), default=[0.0, 0.8])
    parser.add_argument("--tokens", type=int, default=48, help="output tokens a run, after the first")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--coupling-trials", type=int, default=20_000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    where = machine()
    print(", ".join(f"{key} {value}" for key, value in where.items()))
    common = {"backend": args.backend, "seed": 0, "num_threads": args.threads, "max_num_seqs": max(args.batches)}
    settings = [
        *({"draft_tokens": k, "verify": verify} for k in args.drafts for verify in ("rejection", "coupled")),
        {"draft_tokens": max(args.drafts), "verify": "rejection", "draft_schedule": "confidence"},
    ]
    rows = []
    heads = ("batch", "temp", "plain t/s", "t/s", "ratio", "tokens/step", "by place")
    print(f"{'setting':34}", *heads)
    with LLM(args.model, **common) as plain:
        tokens_per_s(plain, prompts(plain, 1, 50), 4, 0.0)  # warm up
        for setting in settings:
            with LLM(args.model, **common, **setting) as drafting:
                tokens_per_s(drafting, prompts(plain, 1, 50), 4, 0.0)
                for batch, temperature in itertools.product(args.batches, args.temperatures):
                    row = compare(plain, drafting, batch, temperature, args)
                    rows.append({**setting, **row})
                    name = " ".join(str(value) for value in setting.values())
                    print(
                        f"{name:34} {batch:5d} {temperature:4.1f} {row['plain_tokens_per_s']:9.1f}"
                        f" {row['tokens_per_s']:7.1f} {row['speed_up']:6.2f} {row['tokens_a_step']:11.2f}"
                        f" {row['acceptance']}",
                        flush=True,
                    )
    table = coupling(args.coupling_trials) if args.coupling_trials else []
    for line in table:
        print(", ".join(f"{key} {value}" for key, value in line.items()))
    if args.json:
        args.json.write_text(json.dumps({"machine": where, "rows": rows, "coupling": table}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
