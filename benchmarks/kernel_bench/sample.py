"""Sampling over the released vocabulary: the best token, the filtered draw, grammar masks."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from deepinfer_cuda.ops import sampling
from kernel_bench.cases import Case
from kernel_bench.harness import Call

VOCAB = 129_280
ROWS = (1, 8, 64, 256)
SETTINGS = {"no filter": (1.0, VOCAB), "top-p 0.95": (0.95, VOCAB), "top-p 0.95, top-k 50": (0.95, 50)}


def cases(rows: Sequence[int] | None) -> list[Case]:
    """The cases at ``rows`` logit rows."""
    found = []
    for n in rows or ROWS:
        read = 4.0 * n * VOCAB
        found.append(Case("sample.best", "", n, read, _best(n), others={"torch argmax": _argmax(n)}, target=None))
        for name, (top_p, top_k) in SETTINGS.items():
            others = {"torch": _race(n) if name == "no filter" else _filtered(n, top_p, top_k)}
            found.append(Case("sample.choose", name, n, read, _choose(n, top_p, top_k), others=others))
        found.append(Case("sample.choose", "coupled", n, read, _choose(n, 1.0, VOCAB, coupled=True)))
        # Half of the tokens are forbidden: their logits are written, all words of the mask read.
        found.append(Case("sample.mask", "half forbidden", n, read / 2 + n * VOCAB / 8, _mask(n)))
    return found


def _logits(n: int, seed: int) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(n, VOCAB, generator=generator, device="cuda") * 2


def _best(n: int) -> Any:
    def make(i: int) -> Call:
        x = _logits(n, i)
        return lambda: sampling.best(x)

    return make


def _argmax(n: int) -> Any:
    def make(i: int) -> Call:
        x = _logits(n, i)
        return lambda: x.argmax(1)

    return make


def _choose(n: int, top_p: float, top_k: int, *, coupled: bool = False) -> Any:
    def make(i: int) -> Call:
        x = _logits(n, i)
        peaks = x.amax(1)
        params = SimpleNamespace(
            temperature=torch.ones(n, device="cuda"),
            min_p=torch.zeros(n, device="cuda"),
            top_p=torch.full((n,), int(top_p * 2**31), device="cuda"),
            top_k=torch.full((n,), top_k, device="cuda"),
        )
        keys = torch.randint(-(2**63), 2**63 - 1, (n,), dtype=torch.int64, device="cuda")
        return lambda: sampling.choose(x, peaks, params, keys, coupled=coupled)

    return make


def _race(n: int) -> Any:
    def make(i: int) -> Call:
        x = _logits(n, i)
        return lambda: (x.softmax(1) / torch.empty_like(x).exponential_()).argmax(1)

    return make


def _filtered(n: int, top_p: float, top_k: int) -> Any:
    def make(i: int) -> Call:
        x = _logits(n, i)

        def call() -> torch.Tensor:
            masses, ids = x.softmax(1).sort(dim=1, descending=True)
            kept = torch.where(masses.cumsum(1) - masses < top_p, masses, 0.0)[:, :top_k]
            return ids.gather(1, (kept / torch.empty_like(kept).exponential_()).argmax(1, keepdim=True))

        return call

    return make


def _mask(n: int) -> Any:
    def make(i: int) -> Call:
        x = _logits(n, i)
        words = torch.randint(-(2**31), 2**31 - 1, (n, VOCAB // 32), dtype=torch.int32, device="cuda")
        requests = torch.arange(n, dtype=torch.int32, device="cuda")
        first = torch.arange(n + 1, dtype=torch.int32, device="cuda")
        return lambda: sampling.mask(x, words, requests, first, 0)

    return make
