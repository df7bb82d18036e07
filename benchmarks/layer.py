"""One layer of each kind at the sizes of the released model, random weights, against the sum of its floors.

    python benchmarks/layer.py --backend cuda [--batches 1,8,64,256] [--context 32768] [--prefill 4096] [--all-kernels]
                               [--json FILE]

A floor is the larger of an op's bytes over the copy rate and its FLOP over the bf16 rate, both measured in the same run
(``deepinfer_v41.floors``). The layer is captured in a graph, so launches cost nothing; the weights of the experts are
larger than any cache. A decode step has one row for each of ``--batches`` sequences of ``--context`` tokens, a prefill
step the ``--prefill`` first rows of one sequence.
"""  # fmt: skip

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from device_bench.layers import run


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--batches", type=numbers, default=[1, 8, 64, 256])
    parser.add_argument("--context", type=int, default=32768)
    parser.add_argument("--prefill", type=int, default=4096, help="rows; 0: none")
    parser.add_argument("--all-kernels", action="store_true", help="also those that do not serve yet (unproven.py)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    if args.backend == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: nothing measured")
        return
    report = run(args)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
