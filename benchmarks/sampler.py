"""Cost of sampling one row, beside the path that a program without this sampler would write in torch.

    python benchmarks/sampler.py [--rows 1,32,256] [--vocab 129280] [--repeat N] [--json FILE]

One thread, on the host, processor time. The other path does the same work with torch's own means: softmax, sort or
topk for the filters, ``torch.multinomial``, and the log-probability of the token that came out. Both run in turns on
the same logits, so that a busy moment touches both; the ratio is the median over turns of the other path's time over
ours: above 1, ours is faster. Grammar masks are applied to every row, as 32-bit words, and compared with unpacking
them by shifts.
"""  # fmt: skip

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deepinfer_contracts import SamplerInputs
from deepinfer_samplers.bitmask import forbid
from deepinfer_samplers.canonical import CanonicalSampler

CASES: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "plain": {},
    "temperature": {"temperature": 0.7},
    "min_p": {"min_p": 0.05},
    "top_k": {"top_k": 50},
    "top_p": {"top_p": 0.9},
    "top_p and top_k": {"top_p": 0.9, "top_k": 50},
}
OPEN = {"temperature": 1.0, "min_p": 0.0, "top_p": 1.0, "top_k": -1}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="1,32,256")
    parser.add_argument("--vocab", type=int, default=129_280)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    report = measure([int(n) for n in options.rows.split(",")], options.vocab, options.repeat)
    where = report["machine"]
    print(f"{where['processor']}, {where['cores']} cores, load {where['load']}, torch {where['torch']}, 1 thread")
    print(f"vocabulary {options.vocab}; median us a row of ours and of the other path, and their ratio")
    print(f"{'case':18}" + "".join(f"{f'{n} rows':>24}" for n in report["rows"]))
    for name, row in report["cases"].items():
        cells = (f"{cell['ours_us']:9.0f} {cell['torch_us']:9.0f} {cell['ratio']:5.2f}" for cell in row.values())
        print(f"{name:18}" + "".join(f"{cell:>24}" for cell in cells))
    print(f"least ratio: {report['least_ratio']:.2f}")
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def measure(rows: list[int], vocab: int, repeat: int) -> dict[str, Any]:
    cases: dict[str, dict[str, dict[str, float]]] = {}
    sampler = CanonicalSampler(vocab)
    for n in rows:
        turns = max(repeat, repeat * 8 // n)
        logits = torch.randn(n, vocab, generator=torch.Generator().manual_seed(n)) * 3
        for name, given in CASES.items():
            values = {**OPEN, **given}
            inputs = inputs_of(n, values)
            pair = compare(
                lambda logits=logits, inputs=inputs: sampler.sample(logits, inputs),
                lambda logits=logits, values=values: torch_path(logits, values),
                turns,
            )
            cases.setdefault(name, {})[str(n)] = per_row(pair, n)
        words = torch.from_numpy(np.random.default_rng(n).integers(-(2**31), 2**31, (n, -(-vocab // 32)), np.int32))
        every, first = torch.arange(n, dtype=torch.int32), torch.arange(n + 1, dtype=torch.int32)
        masked, other = logits.clone(), logits.clone()
        pair = compare(
            lambda masked=masked, words=words, every=every, first=first: forbid(masked, words, every, first, 0),
            lambda other=other, words=words: by_shifts(other, words),
            turns,
        )
        cases.setdefault("grammar mask", {})[str(n)] = per_row(pair, n)
    least = min(cell["ratio"] for row in cases.values() for cell in row.values())
    return {
        "machine": machine(),
        "vocab": vocab,
        "rows": rows,
        "unit": "us of processor time",
        "cases": cases,
        "least_ratio": least,
    }


def inputs_of(n: int, values: dict[str, float]) -> SamplerInputs:
    """``SamplerInputs`` of ``n`` requests with the same parameters."""

    def column(value: float, dtype: type) -> Any:
        return np.full(n, value, dtype)

    return SamplerInputs(
        selected_rows=np.arange(n, dtype=np.int32),
        temperature=column(values["temperature"], np.float32),
        top_p=column(values["top_p"], np.float32),
        min_p=column(values["min_p"], np.float32),
        top_k=column(values["top_k"], np.int32),
        repetition_penalty=column(1.0, np.float32),
        presence_penalty=column(0.0, np.float32),
        frequency_penalty=column(0.0, np.float32),
        seed=np.arange(n, dtype=np.uint64),
        sample_pos=column(7, np.int32),
        max_top_logprobs=0,
    )


def torch_path(logits: torch.Tensor, values: dict[str, float]) -> tuple[torch.Tensor, torch.Tensor]:
    """The same filters and a draw with torch's own means: tokens and their log-probabilities."""
    if values["temperature"] == 0.0:
        return logits.argmax(-1), torch.zeros(len(logits))
    scaled = logits / values["temperature"]
    top_k, top_p = int(values["top_k"]), values["top_p"]
    if values["min_p"] > 0.0:
        p = scaled.softmax(-1)
        scaled = scaled.masked_fill(p < values["min_p"] * p.amax(-1, keepdim=True), -math.inf)
    if top_p < 1.0:
        ordered, order = scaled.sort(-1, descending=True)
        p = ordered.softmax(-1)
        dropped = p.cumsum(-1) - p > top_p
        if top_k > 0:
            dropped[:, top_k:] = True
        scaled = torch.full_like(scaled, -math.inf).scatter(1, order, ordered.masked_fill(dropped, -math.inf))
    elif top_k > 0:
        scaled = scaled.masked_fill(scaled < scaled.topk(top_k).values[:, -1:], -math.inf)
    probabilities = scaled.softmax(-1)
    tokens = torch.multinomial(probabilities, 1)
    return tokens.squeeze(1), probabilities.gather(1, tokens).log().squeeze(1)


def by_shifts(logits: torch.Tensor, words: torch.Tensor) -> None:
    """Apply bitmasks by unpacking them in torch."""
    bits = torch.arange(32, dtype=torch.int32)
    allowed = (words.unsqueeze(-1) >> bits & 1).flatten(1)[:, : logits.shape[1]].bool()
    logits.masked_fill_(~allowed, -math.inf)


def compare(ours: Callable[[], Any], other: Callable[[], Any], repeat: int) -> tuple[float, float, float]:
    """Median seconds of both, and the median ratio of neighbouring turns."""
    ours()
    other()
    times = [(seconds(ours), seconds(other)) for _ in range(max(1, repeat))]
    mine, theirs = zip(*times, strict=True)
    return statistics.median(mine), statistics.median(theirs), statistics.median(b / a for a, b in times)


def seconds(call: Callable[[], Any]) -> float:
    began = time.thread_time()
    call()
    return time.thread_time() - began


def per_row(pair: tuple[float, float, float], n: int) -> dict[str, float]:
    ours, other, ratio = pair
    return {"ours_us": round(ours / n * 1e6, 2), "torch_us": round(other / n * 1e6, 2), "ratio": round(ratio, 3)}


def machine() -> dict[str, Any]:
    processor = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line[:10] == "model name"]
        processor = names[0] if names else processor
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    return {"processor": processor, "cores": os.cpu_count(), "load": load, "torch": torch.__version__}


if __name__ == "__main__":
    sys.exit(main())
