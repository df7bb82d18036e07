"""Calls of ops on many rows whose results are one for each row: any part of the rows can be run alone.

A kernel goes over rows in tiles, and what it does behind its first tile or its first grid shows in long batches only.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.conformance import samples
from deepinfer_core.conformance.arena import LAYERS, STATE, SWA, UNITS, specs
from deepinfer_core.conformance.backend.offered import partner
from deepinfer_core.conformance.backend.sampling_cases import params_of
from deepinfer_core.conformance.model_sizes import SMALL, offered_heads
from deepinfer_core.conformance.rotary_samples import positions_for, table_for

Run = Callable[[slice], tuple[Tensor, ...]]
"""Rows -> the results of exactly these rows, each ``[n, ...]``."""
WIDTH, COLUMNS, VOCAB, K = SMALL.width, 40, 200, 8
DECODE = "attn.sparse_decode"


class Rows:
    """Makes the inputs of ``count`` rows, on the device; a case is a method named like its op."""

    def __init__(self, backend: Any, device: Any, generator: torch.Generator, count: int) -> None:
        self.backend, self.ops, self.device, self.g, self.count = backend, backend.ops, device, generator, count
        self.heads = offered_heads(backend, 4)

    def view(self, name: str, *, units: int = UNITS) -> Any:
        """A cache of the sizes of the small model."""
        made = specs(partner(self.backend, "kv"), partner(self.backend, "index"), width=WIDTH,
                     index_width=SMALL.index_width, ring=SMALL.ring, state_ring=SMALL.state_ring)  # fmt: skip
        caches = self.ops["cache.alloc"](made, {"main": UNITS, "index": UNITS, "swa": UNITS, "state": units})
        return self.ops["cache.view"](caches, name, LAYERS[1])

    def normal(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return samples.normal(self.g, *(shape or (self.count, WIDTH)), dtype=dtype).to(self.device)

    def ints(self, low: int, high: int, *shape: int) -> Tensor:
        """int32 of ``[low, high)``; of one column without a shape."""
        drawn = torch.randint(low, high, (self.count, *shape), generator=self.g, dtype=torch.int32)
        return drawn.to(self.device)

    def cast_per_token(self) -> Run:
        x, op = self.normal(), self.ops["quant.cast_per_token"]
        return lambda s: _codes(op(x[s]))

    def rms(self) -> Run:
        x, w, op = self.normal(), self.normal(WIDTH), self.ops["norm.rms"]
        return lambda s: (op(x[s], w, eps=1e-6)[0],)

    def rotary(self) -> Run:
        table, positions = table_for(self.device, 16), positions_for(self.device, self.count)
        x, op = self.normal(), self.ops["transform.rotary"]
        return lambda s: (op(x[s], (table, positions[s], False)),)

    def hadamard(self) -> Run:
        x, op = self.normal(), self.ops["transform.hadamard"]
        return lambda s: (op(x[s], WIDTH**-0.5),)

    def rope_rows(self) -> Run:
        table, positions = table_for(self.device, 16), positions_for(self.device, self.count)
        x, turn, op = self.normal(), self.ops["transform.rotary"], self.ops["transform.rope_rows"]
        return lambda s: (turn(x[s], (op(table, positions[s]), False)),)

    def window_index_prefill(self) -> Run:
        pivots, op = self.ints(0, 9, 4), self.ops["meta.window_index_prefill"]
        return lambda s: (op(pivots[s].contiguous(), 20),)

    def window_index_decode(self) -> Run:
        windows, op = self.ints(0, 30, 2), self.ops["meta.window_index_decode"]
        return lambda s: (op(windows[s], 37, 32),)

    def compressed_index(self) -> Run:
        offsets, op = self.ints(0, 9, 2), self.ops["meta.compressed_index"]
        return lambda s: (op(offsets[s], 9, base=5),)

    def index_cat(self) -> Run:
        window, compressed, op = self.ints(-1, 50, 4), self.ints(-1, 50, 3), self.ops["meta.index_cat"]
        return lambda s: (op(window[s], compressed[s], 9),)

    def logical_to_slot(self) -> Run:
        entries, tables, op = self.ints(-1, 95, 7), self.ints(0, 99, 3), self.ops["meta.logical_to_slot"]
        return lambda s: (op(entries[s], tables[s], 32),)

    def block_tables(self) -> Run:
        tables, queries, op = self.ints(1, 900, 5), self.ints(0, self.count), self.ops["meta.block_tables"]
        return lambda s: (op(tables, queries[s]),)

    def gather_rows(self) -> Run:
        x, index, op = self.normal(), self.ints(0, self.count), self.ops["meta.gather_rows"]
        return lambda s: (op(x, index[s]),)

    def sparse_prefill(self) -> Run:
        q, kv, indices = self.normal(self.count, self.heads, WIDTH), self.normal(90, WIDTH), self.ints(-1, 90, COLUMNS)
        op = self.ops["attn.sparse_prefill"]
        return lambda s: _tensors(op(q[s], kv, indices[s], scale=0.125))

    def sparse_decode(self) -> Run:
        view = self.view(SWA)
        slots = torch.arange(UNITS * SMALL.ring, dtype=torch.int32, device=self.device)
        self.ops["cache.store"](self.normal(len(slots), WIDTH), view, slots)
        q, idx, op = self.normal(self.count, self.heads, WIDTH), self.ints(-1, len(slots), 32), self.ops[DECODE]
        return lambda s: _tensors(op(q[s], view, idx[s], scale=0.125))

    def compress_decode(self) -> Run:
        state = self.view(STATE, units=self.count).tensor
        fresh = self.normal(*state.shape, dtype=torch.float32)
        score, latent = (self.normal(self.count, WIDTH, dtype=torch.float32) for _ in range(2))
        slots, lengths = torch.arange(self.count, dtype=torch.int32, device=self.device), self.ints(1, 9)

        def run(rows: slice) -> tuple[Tensor, ...]:
            state.copy_(fresh)
            given = (score[rows], latent[rows], state, slots[rows], lengths[rows])
            entries = self.ops["compress.decode"](*given, 2, max_q=1, dtype=torch.float32)
            done = lengths[rows] % 2 == 0  # the others have no entry yet
            return entries.masked_fill(~done.unsqueeze(1), 0.0), state[rows].clone()

        return run

    def compress_prefill(self) -> Run:
        """A row is a sequence here: its last four of nine rows, two entries."""
        state = self.view(STATE, units=self.count).tensor
        fresh = self.normal(*state.shape, dtype=torch.float32)
        score, latent = (self.normal(self.count, 4, WIDTH, dtype=torch.float32) for _ in range(2))
        slots = torch.arange(self.count, dtype=torch.int32, device=self.device)

        def run(rows: slice) -> tuple[Tensor, ...]:
            state.copy_(fresh)
            ends = torch.arange(rows.stop - rows.start + 1, dtype=torch.int32, device=self.device)
            given = (score[rows].flatten(0, 1), latent[rows].flatten(0, 1), state, slots[rows], None)
            lengths = (4 * ends, 9 * ends, 2 * ends)
            entries = self.ops["compress.prefill"](*given, *lengths, 2, dtype=torch.float32)
            return entries.view(-1, 2, WIDTH), state[rows].clone()

        return run

    def index_logits(self) -> Run:
        q, weights = self.normal(self.count, 4, 32), self.normal(self.count, 4)
        keys, op = self.normal(COLUMNS, 32), self.ops["index.logits"]
        begin, end = torch.zeros_like(self.ints(0, 1)), torch.full_like(self.ints(0, 1), COLUMNS)
        return lambda s: (op(q[s], weights[s], keys, span=(begin[s], end[s]))[:, :COLUMNS],)

    def index_topk(self) -> Run:
        scores, end, op = self.normal(self.count, 90, dtype=torch.float32), self.ints(0, 91), self.ops["index.topk"]
        return lambda s: (op(scores[s], 16, end=end[s]),)

    def block_max(self) -> Run:
        scores, valid = self.normal(self.count, 90, dtype=torch.float32), self.ints(0, 91)

        def run(rows: slice) -> tuple[Tensor, ...]:
            best, counts = self.ops["index.block_max"](scores[rows], valid[rows], 8)
            behind = torch.arange(best.shape[1], device=best.device) >= counts.unsqueeze(1)
            return best.masked_fill(behind, 0.0), counts

        return run

    def restore(self) -> Run:
        candidates, compact = self.ints(0, 99, 4).sort(1).values, self.ints(-1, 32, 9)
        op = self.ops["index.restore"]
        return lambda s: (op(compact[s].clone(), candidates[s], 8),)  # it works in place

    def dense(self) -> Run:
        w, x, op = self.ops["quant.prepare_weight"]("w", self.normal(96, WIDTH)), self.normal(), self.ops["gemm.dense"]
        return lambda s: (op(x[s], w),)

    def grouped(self) -> Run:
        w = self.ops["quant.prepare_weight"]("w", list(self.normal(2, 32, WIDTH)), use="experts")
        x, op = self.normal(), self.ops["gemm.grouped"]

        def run(rows: slice) -> tuple[Tensor, ...]:
            a = torch.cat([x[:3], x[rows]])
            return (op(a, w, torch.tensor([3, len(a)], dtype=torch.int32, device=self.device))[3:],)

        return run

    def einsum_heads(self) -> Run:
        w = self.ops["quant.prepare_weight"]("w", self.normal(64, WIDTH), use="heads:2")
        x, op = self.normal(self.count, 2, WIDTH), self.ops["gemm.einsum_heads"]
        return lambda s: (op(x[s], w),)

    def gate(self) -> Run:
        w = self.ops["quant.prepare_weight"]("gate", self.normal(16, WIDTH))
        x, bias, op = self.normal(), torch.zeros(16, device=self.device), self.ops["moe.gate"]
        return lambda s: _tensors(op(x[s], w, bias, k=K, scale=1.5))

    def layer_of_experts(self) -> Run:
        """Eight experts for each row, so that every place of a row is used; one row in five chooses fewer."""
        prepare, count = self.ops["quant.prepare_weight"], 12
        w1 = prepare("w1", list(self.normal(count, 2 * 32, WIDTH)), use="experts")
        w2 = prepare("w2", list(self.normal(count, WIDTH, 32)), use="experts")
        idx = torch.stack([torch.randperm(count, generator=self.g)[:K] for _ in range(self.count)])
        idx[::5, 2:6] = -1
        weight = (torch.rand(idx.shape, generator=self.g) + 0.5).masked_fill(idx < 0, 0.0)
        idx, weight, x = idx.to(self.device), weight.to(self.device), self.normal()

        def run(rows: slice) -> tuple[Tensor, ...]:
            d = self.ops["moe.dispatch"](x[rows], idx[rows], weight[rows])
            y = self.ops["moe.experts"](d, w1, w2, clamp=10.0, cast=None)
            return (self.ops["moe.combine"](y, d.handle),)

        return run

    def swiglu(self) -> Run:
        x, op = self.normal(), self.ops["moe.swiglu"]
        return lambda s: (op(x[s], clamp=10.0),)

    def mhc(self) -> Run:
        fn, base = self.normal(24, 4 * WIDTH, dtype=torch.float32) / 16, self.normal(24, dtype=torch.float32)
        params = self.ops["mhc.prepare"](fn, torch.tensor([0.7, 1.3, 2.0], device=self.device), base)
        stream, y = self.normal(self.count, 4, WIDTH), self.normal()
        a = self.normal(self.count, 4, dtype=torch.float32)

        def run(rows: slice) -> tuple[Tensor, ...]:
            x, a_next, post, comb = self.ops["mhc.pre"](stream[rows], a[rows], params)
            mixed = self.ops["mhc.post"](y[rows], stream[rows], post, comb)
            expanded = self.ops["mhc.expand"](y[rows], 4)
            return expanded, x, a_next, post, comb, mixed, self.ops["mhc.head"](mixed, a[rows])

        return run

    def engram(self) -> Run:
        table = self.ops["engram.prepare"](self.normal(50, 32))
        params = self.ops["engram.prepare_gate"](*(self.normal(4, WIDTH) for _ in range(2)))
        x, kv, rows = self.normal(self.count, 4, WIDTH), self.normal(self.count, 5 * WIDTH), self.ints(0, 50, 4).long()

        def run(s: slice) -> tuple[Tensor, ...]:
            return self.ops["engram.fetch"](rows[s], table), self.ops["engram.gate"](x[s], kv[s], params)

        return run

    def logprobs(self) -> Run:
        logits, op = self.normal(self.count, VOCAB, dtype=torch.float32), self.ops["sample.logprobs"]
        rows = [((0.8, 1.0, -1, None), (1.0, 1.0, 30, None))[i % 2] for i in range(self.count)]
        return lambda s: (op(logits[s], params_of(rows[s], self.device)).exp(),)

    def draw(self) -> Run:
        chances = torch.log_softmax(self.normal(self.count, VOCAB, dtype=torch.float32), -1)
        seeds, positions, op = self.ints(0, 1 << 30).long(), self.ints(0, 999), self.ops["sample.draw"]
        return lambda s: (op(chances[s], seeds[s], positions[s]),)

    def mask(self) -> Run:
        logits, bits = self.normal(self.count, VOCAB, dtype=torch.float32), self.ints(-(2**31), 2**31 - 1, 7)

        def run(rows: slice) -> tuple[Tensor, ...]:
            part = logits[rows].clone()
            numbers = torch.arange(len(part) + 1, dtype=torch.int32, device=self.device)
            self.ops["sample.mask"](part, bits[rows], numbers[:-1], numbers, 0)
            return (part,)

        return run

    def verify(self) -> Run:
        """Greedy requests with one draft each, every other one right: nothing hangs on a last bit."""
        logits = self.normal(self.count, 2, VOCAB, dtype=torch.float32)
        tokens = logits.argmax(2).to(torch.int32)
        tokens[::2, 0] = (tokens[::2, 0] + 1) % VOCAB

        def run(rows: slice) -> tuple[Tensor, ...]:
            part, drafts = logits[rows].flatten(0, 1), tokens[rows].flatten()
            numbers = torch.arange(len(part), device=self.device)
            first = torch.arange(0, len(part) + 1, 2, dtype=torch.int32, device=self.device)
            greedy = [(0.0, 1.0, -1, None)] * len(part)
            params = params_of(greedy, self.device, seeds=numbers, positions=numbers.int(), first_row=first)
            got = self.ops["sample.verify"](part, params, SimpleNamespace(tokens=drafts, logprobs=None), mode="coupled")
            return got["accepted"], got["sampled_ids"]

        return run


CASES: dict[str, tuple[Callable[[Rows], Run], tuple[str, ...]]] = {
    "quant.cast_per_token": (Rows.cast_per_token, ("B",)),
    "norm.rms": (Rows.rms, ("C(4e-4)",)),
    "transform.rotary": (Rows.rotary, ("B",)),
    "transform.hadamard": (Rows.hadamard, ("B",)),
    "transform.rope_rows": (Rows.rope_rows, ("B",)),
    "meta.window_index_prefill": (Rows.window_index_prefill, ("B",)),
    "meta.window_index_decode": (Rows.window_index_decode, ("B",)),
    "meta.compressed_index": (Rows.compressed_index, ("B",)),
    "meta.index_cat": (Rows.index_cat, ("B",)),
    "meta.logical_to_slot": (Rows.logical_to_slot, ("B",)),
    "meta.block_tables": (Rows.block_tables, ("B",)),
    "meta.gather_rows": (Rows.gather_rows, ("B",)),
    "attn.sparse_prefill": (Rows.sparse_prefill, ("A(2e-3, 6.02/128)", "A(2e-6, 16.02/65536)")),
    DECODE: (Rows.sparse_decode, ("A(2e-3, 4.02/128)", "A(2e-6, 16.02/65536)")),
    "compress.prefill": (Rows.compress_prefill, ("C(4e-8)", "B")),
    "compress.decode": (Rows.compress_decode, ("C(4e-8)", "B")),
    "index.logits": (Rows.index_logits, ("C(4e-5)",)),
    "index.topk": (Rows.index_topk, ("B",)),
    "index.block_max": (Rows.block_max, ("B", "B")),
    "index.restore": (Rows.restore, ("B",)),
    "gemm.dense": (Rows.dense, ("C(4e-3)",)),
    "gemm.grouped": (Rows.grouped, ("C(4e-3)",)),
    "gemm.einsum_heads": (Rows.einsum_heads, ("C(8e-3)",)),
    "moe.gate": (Rows.gate, ("S", "C(4e-11)")),
    "moe.dispatch moe.experts moe.combine": (Rows.layer_of_experts, ("C(8e-3)",)),
    "moe.swiglu": (Rows.swiglu, ("A(2e-2, 2e-2)",)),
    "mhc.expand mhc.pre mhc.post mhc.head": (Rows.mhc, ("B", "C(4e-4)", *["A(2e-5, 2e-5)"] * 3, "C(4e-4)", "C(8e-4)")),
    "engram.fetch engram.gate": (Rows.engram, ("B", "C(4e-4)")),
    "sample.logprobs": (Rows.logprobs, ("A(2e-4, 2e-5)",)),
    "sample.draw": (Rows.draw, ("B",)),
    "sample.verify": (Rows.verify, ("B", "B")),
    "sample.mask": (Rows.mask, ("B",)),
}
"""Ops of a case -> how its rows are made, and the class of each output: twice that of the op in distance, because both
sides may be off. Those of class S are compared where nothing is near to the cut."""


def _tensors(result: Any) -> tuple[Tensor, ...]:
    parts = result if isinstance(result, tuple) else (result,)
    return tuple(part for part in parts if isinstance(part, Tensor))


def _codes(quantised: Any) -> tuple[Tensor, ...]:
    return (quantised.data.view(torch.uint8),)
