"""What a grammar costs: compiling it, and filling and applying its masks in each step, at the real vocabulary's size.

    python benchmarks/grammar.py [--vocabulary 129280] [--batches 1,32,256] [--steps 20] [--seconds 6] [--json FILE]

The vocabulary is synthetic, made from a fixed seed: all bytes, and words of two to ten letters, digits and punctuation
in the proportions of a byte-level tokenizer. Each request walks through its grammar at random, so that the masks are
those of many places. One thread. ``fill`` is one matcher and step (accept included), ``apply`` the masks of a batch on
f32 logits ``[batch, vocabulary]``; medians, with the 99th percentile of ``fill``. ``counted`` grammars bound the length
of their strings: each count is a state with a mask of its own. A case ends after ``--seconds``, or is left out if one
step would take longer.
"""  # fmt: skip

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from decode import machine

from deepinfer_samplers.bitmask import forbid
from deepinfer_samplers.grammar_plugin import CACHE_BYTES
from deepinfer_samplers.grammars.xgrammar_engine import XGrammarEngine

SEED = 20261129
EOS = 256
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "since": {"type": "string", "format": "date"},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 5},
        "notes": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age", "since", "tags", "notes"],
}
GRAMMARS = {
    "json": {"schema_type": "json", "schema": json.dumps(SCHEMA)},
    "json_object": {"schema_type": "json_object", "schema": ""},
    "regex": {"schema_type": "regex", "schema": r"([a-z]+ )+[0-9]+\."},
    "ebnf": {"schema_type": "ebnf", "schema": 'root ::= term ("+" term)*\nterm ::= [0-9]+ | "(" root ")"'},
    "counted json": {"schema_type": "json", "schema": '{"type": "string", "maxLength": 12}'},
    "counted regex": {"schema_type": "regex", "schema": r"([a-z]{2,8} ){2,5}[0-9]{2,4}\."},
}


class Vocabulary:
    """Enough of a tokenizer for a grammar engine."""

    def __init__(self, size: int) -> None:
        rng = random.Random(SEED)
        words = {bytes([byte]): None for byte in range(256)}
        words[b""] = None
        while len(words) < size:
            kind = rng.random()
            letters = "etaoinshrdlucmfwypvbgkjqxz" if kind < 0.8 else "0123456789" if kind < 0.9 else '{}[]":, .-_\n()'
            word = "".join(rng.choice(letters) for _ in range(rng.randint(2, 10)))
            words[((" " if rng.random() < 0.4 else "") + (word.title() if rng.random() < 0.1 else word)).encode()] = (
                None
            )
        self.token_bytes = list(words)
        self.vocab_size = size
        self.eos_ids = frozenset({EOS})


def walk(matcher: Any, mask: np.ndarray, rng: random.Random) -> float:
    """One step of a request: fill the mask, then take one of its tokens. Seconds of both, without the choice."""
    begin = time.perf_counter()
    matcher.fill(mask)
    took = time.perf_counter() - begin
    ids = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
    others = ids[ids != EOS]
    token = int(others[rng.randrange(len(others))]) if len(others) else EOS
    begin = time.perf_counter()
    matcher.accept(token)
    return took + time.perf_counter() - begin


def measure(grammar: Any, size: int, batch: int, steps: int, seconds: float) -> dict[str, float]:
    """Microseconds of a batch that walks for ``steps`` steps, or ``seconds``."""
    rng = random.Random(SEED)
    matchers = [grammar.matcher() for _ in range(batch)]
    masks = np.zeros((batch, (size + 31) // 32), np.int32)
    logits = torch.zeros(batch, size)
    rows, first = torch.arange(batch), torch.arange(batch + 1)
    fills: list[float] = []
    of_step: list[float] = []
    applies: list[float] = []
    until = time.perf_counter() + seconds
    for _ in range(steps):
        if applies and time.perf_counter() > until:
            break
        spent = []
        for index, matcher in enumerate(matchers):
            if matcher.finished():
                matchers[index] = matcher = grammar.matcher()
            spent.append(walk(matcher, masks[index], rng))
        begin = time.perf_counter()
        forbid(logits, torch.from_numpy(masks), rows, first, 0)
        applies.append(time.perf_counter() - begin)
        fills += spent
        of_step.append(sum(spent))
    return {
        "fill_us": statistics.median(fills) * 1e6,
        "fill_p99_us": float(np.percentile(fills, 99)) * 1e6,
        "fill_step_us": statistics.median(of_step) * 1e6,
        "apply_us": statistics.median(applies) * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=129_280)
    parser.add_argument("--batches", default="1,32,256")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--json", type=Path, dest="out")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(machine()))
    vocabulary = Vocabulary(args.vocabulary)
    begin = time.perf_counter()
    engine = XGrammarEngine(vocabulary, args.vocabulary, CACHE_BYTES)  # type: ignore[arg-type]  # what it reads is there
    result: dict[str, Any] = {
        "machine": machine(), "vocabulary": args.vocabulary, "engine_s": time.perf_counter() - begin, "compile_ms": {},
        "steps": [],
    }  # fmt: skip
    print(f"engine for {args.vocabulary:,} tokens, import included: {result['engine_s']:.2f} s")
    print(f"{'grammar':>14} {'batch':>6} {'fill us':>9} {'p99':>9} {'fill/step us':>13} {'apply/step us':>14}")
    for name, so_args in GRAMMARS.items():
        begin = time.perf_counter()
        grammar = engine.compile(so_args)
        result["compile_ms"][name] = (time.perf_counter() - begin) * 1e3
        row: dict[str, float] = {"fill_us": 0.0}
        for batch in map(int, args.batches.split(",")):
            if row["fill_us"] * batch / 1e6 > args.seconds:
                continue
            row = measure(grammar, args.vocabulary, batch, args.steps, args.seconds)
            result["steps"].append({"grammar": name, "batch": batch, **row})
            print(
                f"{name:>14} {batch:>6} {row['fill_us']:>9.1f} {row['fill_p99_us']:>9.1f} {row['fill_step_us']:>13.0f}"
                f" {row['apply_us']:>14.0f}"
            )
    print("compile ms: " + ", ".join(f"{name} {took:.0f}" for name, took in result["compile_ms"].items()))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
