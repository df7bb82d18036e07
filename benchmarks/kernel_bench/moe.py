"""The expert layer of the released model: 384 experts of 2,304, six a token, FP4 weights, ids without replacement.

``moe.experts`` is the whole op: sort, gather, both products. Its alternative is torch's grouped product of bf16 weights
(twice, with SwiGLU between); that of the gate is cuBLAS and a composition.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from deepinfer_cuda.ops import moe
from deepinfer_cuda.routing import Routing
from deepinfer_cuda.tensors import PreparedWeight, QuantTensor
from kernel_bench import peers
from kernel_bench.cases import Case
from kernel_bench.harness import Call

ROWS = (1, 8, 64, 256, 4096)
HIDDEN, INNER, EXPERTS, CHOICES = 5120, 2304, 384, 6
FP4_BYTES = 17 / 32
"""A value and its part of a scale."""
CAST = ("e4m3", 32, "ue8m0")


def cases(rows: Sequence[int] | None) -> list[Case]:
    found = []
    for tokens in rows or ROWS:
        found += [_gate(tokens), _sort(tokens), _experts(tokens), _combine(tokens)]
        found += [_swiglu(tokens), _swiglu(tokens * CHOICES)]
    return found


def _generator(i: int) -> torch.Generator:
    return torch.Generator(device="cuda").manual_seed(2000 + i)


def _rows(g: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=g, device="cuda").to(torch.bfloat16)


def _routing(tokens: int, i: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(tokens + 1000 * i)
    idx = torch.rand(tokens, EXPERTS, generator=g).topk(CHOICES).indices
    return idx.cuda(), torch.rand(tokens, CHOICES, generator=g).cuda()


def _gate(tokens: int) -> Case:
    def ours(i: int) -> Call:
        g = _generator(i)
        w = PreparedWeight(name="gate", use="dense", fmt="bf16", stored=_rows(g, EXPERTS, HIDDEN) * 0.02)
        bias, x = torch.rand(EXPERTS, generator=g, device="cuda"), _rows(g, tokens, HIDDEN)
        return lambda: moe.gate(x, w, bias, k=CHOICES, scale=1.5)

    def composed(i: int) -> Call:
        g = _generator(i)
        w = (_rows(g, EXPERTS, HIDDEN) * 0.02).t()
        bias, x = torch.rand(EXPERTS, generator=g, device="cuda"), _rows(g, tokens, HIDDEN)

        def call() -> tuple[Tensor, Tensor]:
            scores = torch.nn.functional.softplus((x @ w).float()).sqrt()
            ids = (scores + bias).topk(CHOICES, dim=1).indices
            chosen = scores.gather(1, ids)
            return ids, chosen / chosen.sum(1, keepdim=True) * 1.5

        return call

    moved = 2.0 * HIDDEN * (tokens + EXPERTS) + 12.0 * tokens * CHOICES
    flop = 2.0 * tokens * HIDDEN * EXPERTS
    others = {"cuBLAS + torch": composed, **peers.peers(peers.gate(tokens, EXPERTS, HIDDEN, CHOICES))}
    return Case("moe.gate", f"{EXPERTS} x {HIDDEN}, top {CHOICES}", tokens, moved, ours, flop, others, 0.80)


def _sort(tokens: int) -> Case:
    def ours(i: int) -> Call:
        routing = Routing(*_routing(tokens, i))
        return lambda: routing.tiles(EXPERTS, 8 if tokens <= 128 else 96)

    def torch_sort(i: int) -> Call:
        ids = _routing(tokens, i)[0].view(-1)
        return lambda: ids.sort(stable=True)

    return Case(
        "moe.dispatch", "sort and tiles", tokens, 28.0 * tokens * CHOICES, ours, 0.0, {"torch.sort": torch_sort}
    )


@functools.cache
def _stack(outputs: int, inputs: int, gated: bool) -> PreparedWeight:
    from deepinfer_cuda.grouped import packed

    g = _generator(outputs)
    codes = torch.empty(EXPERTS, outputs, inputs // 2, dtype=torch.uint8, device="cuda")
    for one in codes:
        one.random_(0, 256, generator=g)
    scales = torch.randint(112, 120, (EXPERTS, outputs, inputs // 32), generator=g, device="cuda", dtype=torch.uint8)
    w = PreparedWeight(name="w", use="experts", fmt="e2m1", stored=codes, scales=scales, block_rows=1, reach=(-15, -8))
    packed(w, gated=gated)
    return w


@functools.cache
def _plain_stack(outputs: int, inputs: int) -> Tensor:
    g, stack = _generator(outputs), torch.empty(EXPERTS, outputs, inputs, dtype=torch.bfloat16, device="cuda")
    for one in stack:
        one.normal_(0.0, 0.02, generator=g)
    return stack


def _experts(tokens: int) -> Case:
    rows = tokens * CHOICES
    touched = len(_routing(tokens)[0].unique())

    def ours(i: int) -> Call:
        w1, w2 = _stack(2 * INNER, HIDDEN, True), _stack(HIDDEN, INNER, False)
        idx, weight = _routing(tokens)
        sf = torch.full((tokens, HIDDEN // 32), 127, dtype=torch.uint8, device="cuda")
        q = QuantTensor(fmt="e4m3", group=32, sf_kind="ue8m0", sf=sf, exact=_rows(_generator(i), tokens, HIDDEN))
        return lambda: moe.experts(moe.dispatch(q, idx, weight), w1, w2, clamp=10.0)

    def torch_grouped(i: int) -> Call:
        w1, w2 = _plain_stack(2 * INNER, HIDDEN), _plain_stack(HIDDEN, INNER)
        idx, _ = _routing(tokens)
        ends = torch.bincount(idx.view(-1), minlength=EXPERTS).cumsum(0).int()
        x = _rows(_generator(i), rows, HIDDEN)

        def call() -> Tensor:
            up = torch.nn.functional.grouped_mm(x, w1.transpose(1, 2), offs=ends)
            gate, linear = up.chunk(2, dim=1)
            hidden = torch.nn.functional.silu(gate) * linear
            return torch.nn.functional.grouped_mm(hidden, w2.transpose(1, 2), offs=ends)

        return call

    moved = touched * 3.0 * HIDDEN * INNER * FP4_BYTES + tokens * HIDDEN * (1 + 1 / 32) + 2.0 * rows * HIDDEN
    flop = 6.0 * rows * HIDDEN * INNER
    variant = f"FP4 weights, {touched} experts touched"
    return Case("moe.experts", variant, tokens, moved, ours, flop, {"torch grouped_mm bf16": torch_grouped}, 0.70)


def _combine(tokens: int) -> Case:
    rows = tokens * CHOICES

    def ours(i: int) -> Call:
        g, (idx, weight) = _generator(i), _routing(tokens, i)
        d = moe.dispatch(_rows(g, tokens, HIDDEN), idx, weight)
        d.routing.tiles(EXPERTS, 8)
        y, shared = _rows(g, rows, HIDDEN), _rows(g, tokens, HIDDEN)
        return lambda: moe.combine(y, d.handle, bias=shared)

    def composed(i: int) -> Call:
        g, (idx, weight) = _generator(i), _routing(tokens, i)
        row_of = Routing(idx, weight).row_of.long()
        y, shared = _rows(g, rows, HIDDEN), _rows(g, tokens, HIDDEN)
        return lambda: y[row_of].sum(1, dtype=torch.float32).add_(shared).bfloat16()

    moved = 2.0 * HIDDEN * (rows + 2 * tokens) + 4.0 * rows
    return Case("moe.combine", "6 rows + shared", tokens, moved, ours, 0.0, {"torch": composed}, 0.80)


def _swiglu(rows: int) -> Case:
    def ours(i: int) -> Call:
        g = _generator(i)
        x, weight = _rows(g, rows, 2 * INNER), torch.rand(rows, generator=g, device="cuda")
        return lambda: moe.swiglu(x, clamp=10.0, weight=weight, cast=CAST)

    def composed(i: int) -> Call:
        x = _rows(_generator(i), rows, 2 * INNER)

        def call() -> Tensor:
            gate, linear = x.chunk(2, dim=1)
            return torch.nn.functional.silu(gate) * linear

        return call

    moved = rows * INNER * (4 + 2 + 1 / 32)
    others = {"torch, bf16": composed, **peers.peers(peers.swiglu(rows, INNER, 10.0))}
    return Case("moe.swiglu", "2304, E4M3 values", rows, moved, ours, 0.0, others, 0.80)
