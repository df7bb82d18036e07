"""Calls that an op has to refuse: a typed error that names it, before anything is written (``spec/kernels.md`` 3.1).

One row here for each way in which the arguments of an op can contradict each other, or not be what they are called.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attrs import frozen
from torch import Tensor

from deepinfer_contracts import OPS
from deepinfer_core.conformance.arena import INDEX, LAYERS, MAIN, SWA, UNITS, Arena, specs
from deepinfer_core.conformance.backend.offered import partner
from deepinfer_core.conformance.backend.sampling_cases import params_of
from deepinfer_core.conformance.model_sizes import SMALL
from deepinfer_core.conformance.refusals import require_refused


@frozen
class Parts:
    """What the calls are made of."""

    backend: Any
    device: Any
    main: Any
    index: Any
    swa: Any

    def i(self, *shape: int, dtype: Any = torch.int32) -> Tensor:
        return torch.ones(shape, dtype=dtype, device=self.device)

    def f(self, *shape: int, dtype: Any = torch.float32) -> Tensor:
        return torch.ones(shape, dtype=dtype, device=self.device)

    def h(self, *shape: int) -> Tensor:
        return self.f(*shape, dtype=torch.bfloat16)

    def params(self, rows: int, **more: Any) -> SimpleNamespace:
        return params_of([(1.0, 1.0, -1, None)] * rows, self.device, **more)

    def verify(self, rows: int, first: list[int]) -> SimpleNamespace:
        seeds, positions = self.i(rows, dtype=torch.int64), self.i(rows)
        return self.params(
            rows, seeds=seeds, positions=positions,
            first_row=torch.tensor(first, dtype=torch.int32, device=self.device),
        )  # fmt: skip


D, DI, HEADS = SMALL.width, SMALL.index_width, SMALL.heads
Call = Callable[[Parts], tuple[tuple[Any, ...], dict[str, Any]]]


def call(*args: Any, **kw: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kw


def prefill_of(p: Parts, **changed: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """``compress.prefill`` of one sequence of four rows, with some arguments replaced."""
    given = {
        "score": p.f(4, D), "latent": p.f(4, D), "state": p.f(2, 7, 2, D), "state_slot": p.i(1), "row_seq": None,
        "cu_q": torch.tensor([0, 4], dtype=torch.int32, device=p.device),
        "cu_k": torch.tensor([0, 4], dtype=torch.int32, device=p.device),
        "cu_c": torch.tensor([0, 2], dtype=torch.int32, device=p.device), "ratio": 2,
    } | changed  # fmt: skip
    return tuple(given.values()), {}


BAD: dict[str, dict[str, Call]] = {
    "cache.view": {
        "no such cache": lambda p: call(caches_of(p.backend), "nothing", LAYERS[0]),
        "no such layer": lambda p: call(caches_of(p.backend), MAIN, 1),
    },
    "cache.store": {
        "width": lambda p: call(p.h(3, D + 32), p.main, p.i(3)),
        "rank": lambda p: call(p.h(3, 1, D), p.main, p.i(3)),
        "rows": lambda p: call(p.h(3, D), p.main, p.i(2)),
        "slots of floats": lambda p: call(p.h(3, D), p.main, p.f(3)),
        "slots of two dimensions": lambda p: call(p.h(3, D), p.main, p.i(3, 1)),
        "integers": lambda p: call(p.i(3, D), p.main, p.i(3)),
    },
    "cache.load_segments": {
        "columns": lambda p: call(p.main, p.i(2, 3), 4),
        "rank": lambda p: call(p.main, p.i(8), 4),
        "floats": lambda p: call(p.main, p.f(2, 4), 4),
        "out of another size": lambda p: call(p.main, p.i(1, 4), 4, out=p.h(3, D)),
        "out of another width": lambda p: call(p.main, p.i(1, 4), 4, out=p.h(4, D + 1)),
    },
    "compress.prefill": {
        "latent": lambda p: prefill_of(p, latent=p.f(4, D + 1)),
        "width of the state": lambda p: prefill_of(p, state=p.f(2, 7, 2, D + 1)),
        "planes of the state": lambda p: prefill_of(p, state=p.f(2, 7, 3, D)),
        "state of bf16": lambda p: prefill_of(p, state=p.h(2, 7, 2, D)),
        "score of bf16": lambda p: prefill_of(p, score=p.h(4, D)),
        "slots": lambda p: prefill_of(p, state_slot=p.i(2)),
        "cu_k": lambda p: prefill_of(p, cu_k=p.i(3)),
        "ring shorter than a group": lambda p: prefill_of(p, state=p.f(2, 1, 2, D), ratio=4),
    },
    "compress.decode": {
        "ring": lambda p: call(p.f(2, D), p.f(2, D), p.f(2, 4, 2, D), p.i(2), p.i(2), 2, max_q=4),
        "latent": lambda p: call(p.f(2, D), p.f(3, D), p.f(2, 7, 2, D), p.i(2), p.i(2), 2, max_q=1),
        "state of bf16": lambda p: call(p.f(2, D), p.f(2, D), p.h(2, 7, 2, D), p.i(2), p.i(2), 2, max_q=1),
        "slots": lambda p: call(p.f(2, D), p.f(2, D), p.f(2, 7, 2, D), p.i(3), p.i(2), 2, max_q=1),
        "lengths": lambda p: call(p.f(2, D), p.f(2, D), p.f(2, 7, 2, D), p.i(2), p.i(1), 2, max_q=1),
    },
    "compress.state_copy": {
        "width": lambda p: call(p.f(7, 2, D), p.f(7, 2, D + 1), 5),
        "rank": lambda p: call(p.f(1, 7, 2, D), p.f(1, 7, 2, D), 5),
    },
    "meta.window_index_prefill": {"columns": lambda p: call(p.i(3, 3), 8), "rank": lambda p: call(p.i(4), 8)},
    "meta.window_index_decode": {"columns": lambda p: call(p.i(3, 4), 8, 4), "rank": lambda p: call(p.i(2), 8, 4)},
    "meta.compressed_index": {"columns": lambda p: call(p.i(3, 3), 8), "rank": lambda p: call(p.i(2), 8)},
    "meta.index_cat": {"rows": lambda p: call(p.i(3, 4), p.i(2, 4), 9)},
    "meta.logical_to_slot": {
        "rows": lambda p: call(p.i(3, 4), p.i(2, 4), 16),
        "context": lambda p: call(p.i(3, 4), p.i(3, 4), 16, context=p.i(2)),
    },
    "meta.gather_rows": {"index of two dimensions": lambda p: call(p.i(3, 4), p.i(2, 2))},
    "meta.decode_metadata": {
        "lengths": lambda p: call(p.i(2), p.i(3), p.i(2, 4), p.i(2), p.i(2), block_size=128, window=32, ring=37),
        "tables": lambda p: call(p.i(2), p.i(2), p.i(3, 4), p.i(2), p.i(2), block_size=128, window=32, ring=37),
        "slots": lambda p: call(p.i(2), p.i(2), p.i(2, 4), p.i(2), p.i(1), block_size=128, window=32, ring=37),
    },
    "meta.correct_lengths": {
        "no rows": lambda p: call(p.i(2), p.i(2), p.i(2), p.i(0), num_draft=3),
        "rows": lambda p: call(p.i(2), p.i(3), p.i(2), p.i(2), num_draft=3),
        "remap": lambda p: call(p.i(2), p.i(2), p.i(3), p.i(2), num_draft=3),
    },
    "meta.verify_lengths": {
        "rank": lambda p: call(p.f(4), None, 4),
        "budget too small": lambda p: call(p.f(4, 2), None, 3),
        "budget too large": lambda p: call(p.f(4, 2), None, 13),
        "no rows": lambda p: call(p.f(0, 2), p.i(2), 3),
    },
    "meta.feed_tokens": {
        "lengths": lambda p: call(p.i(3, 2), p.i(2), None, p.i(3), 3, vocab_size=9),
        "windows": lambda p: call(p.i(3, 2), p.i(3), None, p.i(3), 3, vocab_size=9, ngram_win=p.i(2, 4),
                                  ngram_table=p.i(9)),
        "windows without a column": lambda p: call(p.i(3, 3), p.i(3), None, p.i(3), 3, vocab_size=9,
                                                   ngram_win=p.i(3, 1), ngram_table=p.i(9)),
        "windows of one dimension": lambda p: call(p.i(3, 2), p.i(3), None, p.i(3), 3, vocab_size=9,
                                                   ngram_win=p.i(3), ngram_table=p.i(9)),
        "drafts": lambda p: call(p.i(3, 3), p.i(3), None, p.i(3), 3, vocab_size=9, drafts=p.i(3, 1)),
    },
    "meta.draft_inputs": {
        "sampled": lambda p: call(p.i(2), p.i(3), p.i(3), block=4, window=32, ring=37, noise=1, vocab_size=9),
        "slot": lambda p: call(p.i(3), p.i(3), p.i(2), block=4, window=32, ring=37, noise=1, vocab_size=9),
    },
    "attn.sparse_prefill": {
        "rank of q": lambda p: call(p.h(3, D), p.h(5, D), p.i(3, 4), scale=1.0),
        "width of kv": lambda p: call(p.h(3, HEADS, D), p.h(5, D + 32), p.i(3, 4), scale=1.0),
        "rows of indices": lambda p: call(p.h(3, HEADS, D), p.h(5, D), p.i(2, 4), scale=1.0),
        "indices of floats": lambda p: call(p.h(3, HEADS, D), p.h(5, D), p.f(3, 4), scale=1.0),
        "sink": lambda p: call(p.h(3, HEADS, D), p.h(5, D), p.i(3, 4), scale=1.0, sink=p.f(HEADS - 1)),
        "lengths": lambda p: call(p.h(3, HEADS, D), p.h(5, D), p.i(3, 4), scale=1.0, lengths=p.i(2)),
        "out": lambda p: call(p.h(3, HEADS, D), p.h(5, D), p.i(3, 4), scale=1.0, out=p.h(2, HEADS, D)),
    },
    "attn.sparse_decode": {
        "rank of q": lambda p: call(p.h(3, D), p.swa, p.i(3, 4), scale=1.0),
        "width": lambda p: call(p.h(3, HEADS, D + 32), p.swa, p.i(3, 4), scale=1.0),
        "rows of idx": lambda p: call(p.h(3, HEADS, D), p.swa, p.i(2, 4), scale=1.0),
        "idx of floats": lambda p: call(p.h(3, HEADS, D), p.swa, p.f(3, 4), scale=1.0),
        "rows of extra_idx": lambda p: call(p.h(3, HEADS, D), p.swa, p.i(3, 4), scale=1.0, extra=p.main,
                                            extra_idx=p.i(2, 4)),
        "extra without extra_idx": lambda p: call(p.h(3, HEADS, D), p.swa, p.i(3, 4), scale=1.0, extra=p.main),
        "width of extra": lambda p: call(p.h(3, HEADS, D), p.swa, p.i(3, 4), scale=1.0, extra=p.index,
                                         extra_idx=p.i(3, 4)),
        "sink": lambda p: call(p.h(3, HEADS, D), p.swa, p.i(3, 4), scale=1.0, sink=p.f(HEADS + 1)),
        "lengths": lambda p: call(p.h(3, HEADS, D), p.swa, p.i(3, 4), scale=1.0, lengths=p.i(4)),
        "out": lambda p: call(p.h(3, HEADS, D), p.swa, p.i(3, 4), scale=1.0, out=p.h(3, HEADS, D + 1)),
    },
    "index.logits": {
        "rank of q": lambda p: call(p.h(3, DI), p.f(3), p.h(9, DI), span=(p.i(3), p.i(3))),
        "weights": lambda p: call(p.h(3, 2, DI), p.f(3, 4), p.h(9, DI), span=(p.i(3), p.i(3))),
        "width of keys": lambda p: call(p.h(3, 2, DI), p.f(3, 2), p.h(9, DI + 32), span=(p.i(3), p.i(3))),
        "no span": lambda p: call(p.h(3, 2, DI), p.f(3, 2), p.h(9, DI)),
        "rows of the span": lambda p: call(p.h(3, 2, DI), p.f(3, 2), p.h(9, DI), span=(p.i(2), p.i(3))),
        "no lengths": lambda p: call(p.h(3, 2, DI), p.f(3, 2), p.index, block_table=p.i(3, 2)),
        "no table": lambda p: call(p.h(3, 2, DI), p.f(3, 2), p.index, context_lens=p.i(3)),
        "rows of the table": lambda p: call(p.h(3, 2, DI), p.f(3, 2), p.index, context_lens=p.i(3),
                                            block_table=p.i(2, 2)),
        "width of the cache": lambda p: call(p.h(3, 2, DI + 32), p.f(3, 2), p.index, context_lens=p.i(3),
                                             block_table=p.i(3, 2)),
        "candidates": lambda p: call(p.h(3, 2, DI), p.f(3, 2), p.index, context_lens=p.i(3), block_table=p.i(3, 2),
                                     candidates=p.i(2, 4)),
    },
    "index.topk": {
        "rank": lambda p: call(p.f(9), 4, end=p.i(1)),
        "end": lambda p: call(p.f(3, 9), 4, end=p.i(2)),
        "offset": lambda p: call(p.f(3, 9), 4, end=p.i(3), offset=p.i(2)),
        "out": lambda p: call(p.f(3, 9), 4, end=p.i(3), out=p.i(3, 5)),
        "k": lambda p: call(p.f(3, 9), 0, end=p.i(3)),
    },
    "index.block_max": {
        "rank": lambda p: call(p.f(9), p.i(1), 4),
        "valid": lambda p: call(p.f(3, 9), p.i(2), 4),
        "block": lambda p: call(p.f(3, 9), p.i(3), 0),
    },
    "index.restore": {
        "rows": lambda p: call(p.i(3, 4), p.i(2, 4), 8),
        "offset": lambda p: call(p.i(3, 4), p.i(3, 4), 8, offset=p.i(2)),
    },
    "sample.mask": {
        "words": lambda p: call(p.f(3, 70), p.i(2, 2), p.i(2), p.i(4), 0),
        "lines": lambda p: call(p.f(3, 70), p.i(2, 3), p.i(3), p.i(4), 0),
        "mask of int64": lambda p: call(p.f(3, 70), p.i(2, 3, dtype=torch.int64), p.i(2), p.i(4), 0),
        "rank": lambda p: call(p.f(70), p.i(1, 3), p.i(1), p.i(2), 0),
    },
    "sample.logprobs": {
        "params": lambda p: call(p.f(3, 9), p.params(2)),
        "rank": lambda p: call(p.f(9), p.params(1)),
    },
    "sample.draw": {
        "rank": lambda p: call(p.f(9), p.i(1, dtype=torch.int64), p.i(1)),
        "seeds": lambda p: call(p.f(3, 9), p.i(2, dtype=torch.int64), p.i(3)),
        "positions": lambda p: call(p.f(3, 9), p.i(3, dtype=torch.int64), p.i(2)),
    },
    "sample.verify": {
        "rows": lambda p: call(p.f(3, 9), p.verify(3, [0, 2]), None, mode="coupled"),
        "request without a row": lambda p: call(p.f(3, 9), p.verify(3, [0, 3, 3]), None, mode="coupled"),
        "mode": lambda p: call(p.f(3, 9), p.verify(3, [0, 3]), None, mode="no such mode"),
        "draft logprobs": lambda p: call(p.f(2, 9), p.verify(2, [0, 2]),
                                         SimpleNamespace(tokens=p.i(2), logprobs=p.f(2, 8)), mode="rejection"),
        "draft tokens": lambda p: call(p.f(2, 9), p.verify(2, [0, 2]),
                                       SimpleNamespace(tokens=p.i(3), logprobs=p.f(2, 9)), mode="rejection"),
    },
}  # fmt: skip


def caches_of(backend: Any) -> Any:
    made = specs(partner(backend, "kv"), partner(backend, "index"), width=D, index_width=DI, ring=SMALL.ring)
    return backend.ops["cache.alloc"](made, dict.fromkeys(("main", "index", "swa", "state"), UNITS))


@pytest.fixture(scope="module")
def parts(backend: Any, device: Any) -> Parts:
    caches = caches_of(backend)
    main, index, swa = (backend.ops["cache.view"](caches, name, LAYERS[0]) for name in (MAIN, INDEX, SWA))
    return Parts(backend, device, main, index, swa)


CASES = [
    pytest.param(op, case, id=f"{op}-{case.replace(' ', '_')}", marks=[
        pytest.mark.op(op), *([] if OPS[op].required else [pytest.mark.needs(f"op:{op}")])])
    for op, cases in BAD.items() for case in cases
]  # fmt: skip


BY_VALUE = {("sample.verify", "rows"), ("sample.verify", "request without a row")}
"""Faults that only values show: nobody looks at those of an accelerator before an op runs."""


@pytest.mark.parametrize(("op", "case"), CASES)
def test_bad_calls_are_refused_before_anything_is_written(parts: Parts, op: str, case: str) -> None:
    if (op, case) in BY_VALUE and parts.device.type != "cpu":
        pytest.skip("the values that are wrong lie on the device")
    arenas = [Arena.of(view, width) for view, width in ((parts.main, D), (parts.index, DI), (parts.swa, D))]
    args, kw = BAD[op][case](parts)
    require_refused(parts.backend.ops, op, case, *args, **kw)
    for arena in arenas:
        arena.expect(op, case=case)
