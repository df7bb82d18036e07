"""Medians of every hot op of the cpu backend at the sizes of the shipped checkpoint, as a table and as JSON.

    python benchmarks/cpu_ops.py [--rows 1,32,512] [--json FILE] [--only PREFIX]

One thread, ``torch.inference_mode``; microseconds a call. The last column of a row is what one decode step of the
eight-layer checkpoint spends in that op (calls a step times the median of one row).
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from deepinfer_core.types import CacheLayer, CacheSpec
from deepinfer_cpu import backend as cpu

HIDDEN, HEADS, DIM, ROPE, WINDOW, TOPK, EXPERTS, WIDTH, STREAMS = 256, 8, 64, 16, 32, 16, 8, 64, 4
CONTEXT, RING, INDEX_HEADS, INDEX_DIM = 200, 38, 4, 32
CALLS = {
    "mhc.pre": 16, "mhc.post": 16, "norm.rms hidden": 16, "quant.cast hidden": 16, "quant.cast q_lora": 8,
    "gemm.dense hidden->192": 8, "gemm.dense q_lora->512": 8, "norm.rms q_lora": 8, "transform.rotary q": 8,
    "transform.fused window": 8, "attn.sparse_decode window": 2, "attn.sparse_decode both": 6,
    "transform.rotary out": 8, "gemm.einsum_heads": 8, "quant.cast o": 8, "gemm.dense o->hidden": 8,
    "moe.gate": 8, "moe.dispatch": 8, "moe.experts": 8, "moe.shared": 8, "moe.combine": 8,
    "index.logits": 3, "index.topk": 3, "transform.fused main": 1.5, "compress.decode": 1, "engram.fetch": 2,
    "engram.gate": 2,
}  # fmt: skip


def fp8(out: int, inp: int) -> tuple[torch.Tensor, torch.Tensor]:
    w = torch.randn(out, inp).to(torch.float8_e4m3fn)
    return w, torch.full((-(-out // 32), -(-inp // 32)), 122, dtype=torch.uint8).view(torch.float8_e8m0fnu)


def fp4(out: int, inp: int) -> tuple[torch.Tensor, torch.Tensor]:
    w = torch.randint(-128, 128, (out, inp // 2), dtype=torch.int8)
    return w, torch.full((out, inp // 32), 121, dtype=torch.uint8).view(torch.float8_e8m0fnu)


class Case:
    """Inputs of all ops for ``rows`` rows."""

    def __init__(self, be: cpu.CpuBackend, rows: int) -> None:
        self.be, self.rows = be, rows
        self.x = torch.randn(rows, HIDDEN).bfloat16()
        self.stream = torch.randn(rows, STREAMS, HIDDEN).bfloat16()
        self.a = torch.rand(rows, STREAMS)
        self.mix = be.mhc.prepare(torch.randn(24, STREAMS * HIDDEN) / 32, torch.ones(3), torch.zeros(24))
        self.dense = {n: be.quant.prepare_weight(n, *fp8(o, i)) for n, o, i in (
            ("qa_kv", 192, HIDDEN), ("qb", HEADS * DIM, 128), ("wo_b", HIDDEN, 128), ("w13", 2 * WIDTH, HIDDEN),
            ("w2", HIDDEN, WIDTH))}  # fmt: skip
        self.heads = be.quant.prepare_weight("wo_a", *fp8(128, HEADS * DIM // 2), use="heads:2")
        self.router = be.quant.prepare_weight("gate", torch.randn(EXPERTS, HIDDEN).bfloat16())
        up, down = [fp4(2 * WIDTH, HIDDEN) for _ in range(EXPERTS)], [fp4(HIDDEN, WIDTH) for _ in range(EXPERTS)]
        self.w1 = be.quant.prepare_weight("w1", [w for w, _ in up], [s for _, s in up], use="experts")
        self.w2 = be.quant.prepare_weight("w2", [w for w, _ in down], [s for _, s in down], use="experts")
        table = be.transform.rope_table(2048, ROPE, theta=10000.0)
        self.rope = be.transform.rope_rows(table, torch.arange(rows, dtype=torch.int32))
        self.q = torch.randn(rows, HEADS, DIM).bfloat16()
        self.kv = torch.randn(rows, DIM).bfloat16()
        blocks = 2 * rows
        specs = [
            CacheSpec("index", "index", [CacheLayer(2, 128, "index_fp4", INDEX_DIM)]),
            CacheSpec("main", "main", [CacheLayer(2, 128, "v41_fp4", DIM)]),
            CacheSpec("swa", "swa", [CacheLayer(2, RING, "v41", DIM)]),
            CacheSpec("state", "state", [CacheLayer(2, 7, "f32", DIM, 2)]),
        ]
        self.caches = be.alloc_caches(specs, {"main": blocks, "index": blocks, "swa": rows, "state": rows})
        slots = torch.arange(blocks * 128, dtype=torch.int32)
        be.cache.store(torch.randn(blocks * 128, DIM), self.caches.view("main", 2), slots)
        be.cache.store(torch.randn(blocks * 128, INDEX_DIM), self.caches.view("index", 2), slots)
        be.cache.store(torch.randn(rows * RING, DIM), self.caches.view("swa", 2), slots[: rows * RING])
        self.slots = torch.arange(rows, dtype=torch.int32) * RING
        self.window = self.slots[:, None] + torch.arange(WINDOW, dtype=torch.int32)
        self.table = torch.arange(blocks, dtype=torch.int32).view(rows, 2)
        self.lens = torch.full((rows,), CONTEXT, dtype=torch.int32)
        self.chosen = self.table[:, :1] * 128 + torch.arange(TOPK, dtype=torch.int32) * 3
        self.iq = be.quant.cast_per_token(torch.randn(rows, INDEX_HEADS, INDEX_DIM).bfloat16(), fmt="e2m1")
        self.iw = torch.randn(rows, INDEX_HEADS).bfloat16()
        self.scores = torch.randn(rows, CONTEXT)
        self.state_slot = torch.arange(rows, dtype=torch.int32)
        self.gram = be.engram.prepare(
            torch.randn(600, 32).to(torch.float8_e4m3fn), torch.full((600, 1), 121, dtype=torch.uint8)
        )
        self.gram_rows = torch.randint(0, 600, (rows, 6))
        self.gram_kv = torch.randn(rows, (STREAMS + 1) * HIDDEN).bfloat16()
        self.gram_w = be.engram.prepare_gate(torch.ones(STREAMS, HIDDEN), torch.ones(STREAMS, HIDDEN))

    def calls(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        be, x, dense, sink = self.be, self.x, self.dense, torch.zeros(HEADS)
        ones, ones_q, ones_kv = torch.ones(HIDDEN), torch.ones(128), torch.ones(DIM)
        qx = be.quant.cast_per_token(x)
        lora, lora_q = torch.randn(self.rows, 128).bfloat16(), be.quant.cast_per_token(self.x[:, :128])
        _, _, post, comb = be.mhc.pre(self.stream, self.a, self.mix)
        idx, weight = be.moe.gate(x, self.router, torch.zeros(EXPERTS), k=2, scale=1.5)
        sent = be.moe.dispatch(qx, idx, weight)
        back = be.moe.experts(sent, self.w1, self.w2, clamp=10.0)
        view = self.caches.view
        gate = torch.randn(self.rows, DIM)
        out = torch.randn(self.rows, 2, 256).bfloat16()
        yield "mhc.pre", lambda: be.mhc.pre(self.stream, self.a, self.mix)
        yield "mhc.post", lambda: be.mhc.post(x, self.stream, post, comb)
        yield "norm.rms hidden", lambda: be.norm.rms(x, ones, eps=1e-20)
        yield "norm.rms q_lora", lambda: be.norm.rms(lora, ones_q, eps=1e-20)
        yield "quant.cast hidden", lambda: be.quant.cast_per_token(x)
        yield "quant.cast q_lora", lambda: be.quant.cast_per_token(lora)
        yield "gemm.dense hidden->192", lambda: be.gemm.dense(qx, dense["qa_kv"])
        yield "gemm.dense q_lora->512", lambda: be.gemm.dense(lora_q, dense["qb"])
        yield "transform.rotary q", lambda: be.transform.rotary(self.q, (self.rope, False), out=self.q)
        yield (
            "transform.fused window",
            lambda: be.transform.fused(
                self.kv, norm=(ones_kv, 1e-20), rope=(self.rope, False), store=(view("swa", 2), self.slots)
            ),
        )
        yield (
            "transform.fused main",
            lambda: be.transform.fused(
                self.kv, rope=(self.rope, False), store=(view("main", 2), self.table[:, 0] * 128)
            ),
        )
        yield (
            "attn.sparse_decode window",
            lambda: be.attn.sparse_decode(self.q, view("swa", 2), self.window, scale=0.125, sink=sink),
        )
        yield (
            "attn.sparse_decode both",
            lambda: be.attn.sparse_decode(
                self.q,
                view("swa", 2),
                self.window,
                scale=0.125,
                sink=sink,
                extra=view("main", 2),
                extra_idx=self.chosen,
            ),
        )
        yield "transform.rotary out", lambda: be.transform.rotary(self.q, (self.rope, True), out=self.q)
        yield "gemm.einsum_heads", lambda: be.gemm.einsum_heads(out, self.heads)
        yield "quant.cast o", lambda: be.quant.cast_per_token(lora)
        yield "gemm.dense o->hidden", lambda: be.gemm.dense(lora_q, dense["wo_b"])
        yield "moe.gate", lambda: be.moe.gate(x, self.router, torch.zeros(EXPERTS), k=2, scale=1.5)
        yield "moe.dispatch", lambda: be.moe.dispatch(qx, idx, weight)
        yield "moe.experts", lambda: be.moe.experts(sent, self.w1, self.w2, clamp=10.0)
        yield (
            "moe.shared",
            lambda: be.gemm.dense(
                be.moe.swiglu(be.gemm.dense(qx, dense["w13"]), clamp=10.0, cast=("e4m3", 32, "ue8m0")), dense["w2"]
            ),
        )
        yield "moe.combine", lambda: be.moe.combine(back, sent.handle, bias=x)
        yield (
            "index.logits",
            lambda: be.index.logits(self.iq, self.iw, view("index", 2), context_lens=self.lens, block_table=self.table),
        )
        yield "index.topk", lambda: be.index.topk(self.scores, TOPK, end=self.lens)
        yield (
            "compress.decode",
            lambda: be.compress.decode(gate, gate, view("state", 2).tensor, self.state_slot, self.lens, 2, max_q=1),
        )
        yield "engram.fetch", lambda: be.engram.fetch(self.gram_rows, self.gram)
        yield "engram.gate", lambda: be.engram.gate(self.stream, self.gram_kv, self.gram_w)


def median_us(call: Callable[[], Any], seconds: float = 0.15) -> float:
    call()
    times: list[float] = []
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or len(times) < 5:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="1,32,512")
    parser.add_argument("--json", default="")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    rows = [int(r) for r in args.rows.split(",")]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    be = cpu.create()
    result: dict[str, dict[str, float]] = {}
    with torch.inference_mode():
        for count in rows:
            for name, call in Case(be, count).calls():
                if name.startswith(args.only):
                    result.setdefault(name, {})[str(count)] = round(median_us(call), 1)
    print(f"{platform.machine()}, torch {torch.__version__}, 1 thread; median us a call")
    print(f"{'op':28}" + "".join(f"{'T=' + str(r):>10}" for r in rows) + f"{'us/step':>10}")
    total = 0.0
    for name, times in result.items():
        step = times[str(rows[0])] * CALLS[name]
        total += step
        print(f"{name:28}" + "".join(f"{times[str(r)]:>10.1f}" for r in rows) + f"{step:>10.0f}")
    print(f"{'sum over a decode step':28}" + " " * 10 * len(rows) + f"{total:>10.0f}")
    for r in rows[1:]:
        print(f"  at T={r}: {sum(t[str(r)] * CALLS[n] for n, t in result.items()) / 1e3:.1f} ms a step")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"torch": torch.__version__, "machine": platform.machine(), "median_us": result}, file, indent=1)


if __name__ == "__main__":
    main()
