"""What bounded replay and prefix hits save of a prompt's time, and what bounded replay changes of its answer.

    python benchmarks/bounded_replay.py [--lengths 256,512,1024,1900] [--texts 24] [--repeats 3] [--json FILE]

Times: milliseconds to the first token of one prompt at a time, median of ``--repeats``, in the modes ``off`` and
``compact``; and of a prompt of which all but the last ``--tail`` tokens are cached, with one window of it run again,
and with as much as an exact hit needs (both ``compact``).

Answers: the distribution of the token behind a prompt in mode ``off`` against that in mode ``compact``, and for
comparison against that of the prompt's last window alone. Texts are modules of Python's own library, cut into pieces.
KL is that of off against the other, in nats; agreement is how often both find the same token the most likely.
"""  # fmt: skip

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from decode import machine, numbers, prompts
from torch import Tensor

from deepinfer_core import LLM, SamplingParams

MODULES = ("argparse", "ast", "difflib", "doctest", "inspect", "pdb", "tarfile", "typing", "zipfile", "datetime")
FIRST = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)


def first_token_ms(llm: LLM, ids: list[int], params: SamplingParams = FIRST) -> float:
    begin = time.perf_counter()
    (output,) = llm.generate([ids], params)
    if output.error is not None:
        raise SystemExit(f"a prompt of {len(ids)} tokens failed: {output.error}")
    return (time.perf_counter() - begin) * 1e3


def cold_times(args: argparse.Namespace) -> dict[int, dict[str, float]]:
    """Length -> milliseconds by mode."""
    rows: dict[int, dict[str, float]] = {}
    with LLM(args.model, backend=args.backend, num_threads=args.threads, replay_mode="compact") as llm:
        first_token_ms(llm, prompts(1, 64, args.vocab, 0)[0])  # warm up
        for length in args.lengths:
            ids = prompts(1, length, args.vocab, length)[0]
            rows[length] = {
                mode: statistics.median(
                    first_token_ms(llm, ids, FIRST.updated({"replay_mode": mode})) for _ in range(args.repeats)
                )
                for mode in ("off", "compact")
            }
    return rows


def warm_times(args: argparse.Namespace, kind: str) -> dict[int, tuple[float, int]]:
    """Length -> milliseconds with all but the tail cached, and the positions that ran again."""
    rows = {}
    settings: dict[str, Any] = {"replay_mode": "compact", "prefix_cache": True, "prefix_replay": kind, "block_size": 16}
    with LLM(args.model, backend=args.backend, num_threads=args.threads, **settings) as llm:
        for length in args.lengths:
            shared = prompts(1, length - args.tail, args.vocab, length)[0]
            first_token_ms(llm, shared)
            times, again = [], 0
            for i in range(args.repeats):
                ids = [*shared, *prompts(1, args.tail, args.vocab, 100 + i)[0]]
                begin = time.perf_counter()
                (output,) = llm.generate([ids], FIRST)
                times.append((time.perf_counter() - begin) * 1e3)
                again = output.replayed_tokens
            rows[length] = (statistics.median(times), again)
    return rows


def texts(llm: LLM, count: int, length: int) -> list[list[int]]:
    """Pieces of ``length`` tokens of Python's library, spread over its modules, each from the beginning of a line."""
    tokenizer, pieces = llm.get_tokenizer(), []
    for i in range(count):
        name = MODULES[i % len(MODULES)]
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise SystemExit(f"module {name} has no source here")
        lines = Path(spec.origin).read_text("utf-8").splitlines(keepends=True)
        begin = len(lines) * (i // len(MODULES)) // (count // len(MODULES) + 1)
        ids = tokenizer.encode("".join(lines[begin:]))[:length]
        if len(ids) == length:
            pieces.append(list(ids))
    return pieces


def distributions(llm: LLM, kept: list[Tensor], ids: list[list[int]], mode: str) -> Tensor:
    """Log-probabilities f32 ``[prompts, V]`` of the token behind each prompt."""
    out = []
    for prompt in ids:
        kept.clear()
        first_token_ms(llm, prompt, FIRST.updated({"replay_mode": mode}))
        out.append(kept[-1][-1].float().log_softmax(-1))
    return torch.stack(out)


def agreement(off: Tensor, other: Tensor) -> dict[str, float]:
    support = off.isfinite() & other.isfinite()
    terms = torch.where(support, off.exp() * (off - other), torch.zeros_like(off))
    kl = terms.nan_to_num(0.0).sum(-1)
    return {
        "same_token": round(float((off.argmax(-1) == other.argmax(-1)).float().mean()), 4),
        "kl_mean": round(float(kl.mean()), 5),
        "kl_max": round(float(kl.max()), 5),
    }


def answers(args: argparse.Namespace) -> dict[int, dict[str, Any]]:
    """Length -> how far compact, and the last window alone, are from mode off."""
    rows: dict[int, dict[str, Any]] = {}
    with LLM(args.model, backend=args.backend, num_threads=args.threads, replay_mode="compact") as llm:
        model, kept = llm.assembly.model, []
        original: Callable[[Tensor], Tensor] = model.logits

        def noted(hidden: Tensor) -> Tensor:
            out = original(hidden)
            kept.append(out.detach().cpu())
            return out

        model.logits = noted  # type: ignore[method-assign]
        window = llm.assembly.hints.window
        for length in args.lengths:
            ids = texts(llm, args.texts, length)
            off = distributions(llm, kept, ids, "off")
            rows[length] = {
                "texts": len(ids),
                "compact": agreement(off, distributions(llm, kept, ids, "compact")),
                "last window": agreement(off, distributions(llm, kept, [p[-window:] for p in ids], "off")),
            }
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="checkpoint directory; default: the shipped one")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--lengths", type=numbers, default=[256, 512, 1024, 1900], help="tokens of prompts")
    parser.add_argument("--tail", type=int, default=60, help="tokens of a prompt that are not cached")
    parser.add_argument("--texts", type=int, default=24, help="texts of each length")
    parser.add_argument("--vocab", type=int, default=1500, help="random prompts have ids below it")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    where = machine()
    print(", ".join(f"{k} {v}" for k, v in where.items()))
    cold, window, exact = cold_times(args), warm_times(args, "window"), warm_times(args, "exact")
    print(
        f"{'tokens':>7} {'off ms':>9} {'compact':>9} {'of off':>7} {'window hit':>11} {'exact hit':>10} {'again':>12}"
    )
    times = []
    for n in args.lengths:
        row = {"tokens": n, **{k: round(v, 1) for k, v in cold[n].items()}}
        row |= {"window_hit": round(window[n][0], 1), "exact_hit": round(exact[n][0], 1)}
        row |= {"window_again": window[n][1], "exact_again": exact[n][1]}
        times.append(row)
        print(
            f"{n:7d} {row['off']:9.1f} {row['compact']:9.1f} {row['compact'] / row['off']:7.2f}"
            f" {row['window_hit']:11.1f} {row['exact_hit']:10.1f} {row['window_again']:5d} {row['exact_again']:6d}",
            flush=True,
        )
    found = answers(args)
    print(f"{'tokens':>7} {'texts':>6} {'against off':>12} {'same token':>11} {'KL mean':>9} {'KL max':>9}")
    for n, row in found.items():
        for kind in ("compact", "last window"):
            a = row[kind]
            print(
                f"{n:7d} {row['texts']:6d} {kind:>12} {a['same_token']:11.3f} {a['kl_mean']:9.5f} {a['kl_max']:9.5f}",
                flush=True,
            )
    if args.json:
        record = {"machine": where, "times": times, "answers": found}
        args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
