"""Index scores, the selection among them and block maxima, at the released model's sizes (32 heads of 128, 512 kept).

Bytes of scores count keys, queries, weights and scores once; in prefill a key is counted once for all rows of its
sequence, and a row's scores are those of all keys, the most that it can see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.caches.arenas import CacheView
from deepinfer_cuda.ops import indexer
from deepinfer_cuda.tensors import QuantTensor
from kernel_bench.cases import Case, Maker
from kernel_bench.harness import Call

HEADS, WIDTH, PAGE, KEPT, BLOCK = 32, 128, 64, 512, 8
KEY_BYTES = WIDTH // 2 + WIDTH // 32
ROWS = (1, 8, 64, 256, 4096)
SHARE = 0.60


def cases(rows: Sequence[int] | None) -> list[Case]:
    """The cases at ``rows`` query rows: up to 512 a row is a sequence of its own, above that they share their keys."""
    found = []
    for n in rows or ROWS:
        decode = n <= 512
        found += [_paged(n, 16_384)] if decode else [_gathered(n, 4096)]
        if n == 64:
            found.append(_paged(n, 65_536))
        for dtype, width in ((torch.float32, 8192), (torch.float32, 32_768), (torch.float32, 131_072)):
            if n * width <= 1 << 28:
                found += [_topk(n, width, KEPT, dtype), _block_max(n, width)]
        if n == 64:
            found += [_topk(n, 32_768, KEPT, torch.bfloat16), _topk(n, 16_384, 2048, torch.float32)]
    return found


def _codes(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda")


def _quantised(*shape: int) -> QuantTensor:
    scales = torch.randint(120, 130, (*shape[:-1], shape[-1] // 32), dtype=torch.uint8, device="cuda")
    codes = _codes(*shape[:-1], shape[-1] // 2)
    return QuantTensor.of_codes(codes, scales, fmt="e2m1", group=32, sf_kind="ue8m0")


def _paged(n: int, keys: int) -> Case:
    pages = keys // PAGE

    def make(i: int) -> Call:
        units, stride = n * pages, PAGE * KEY_BYTES + 64
        memory = _codes(units * stride)
        tensor = memory.as_strided((units, PAGE * KEY_BYTES), (stride, 1))
        tensor[:, PAGE * WIDTH // 2 :] = 127
        view = CacheView(tensor, "index_fp4", PAGE, stride, WIDTH)
        table = torch.randperm(units, device="cuda").int().view(n, pages)
        lens = torch.full((n,), keys, dtype=torch.int32, device="cuda")
        q, weights = _quantised(n, HEADS, WIDTH), torch.randn(n, HEADS, device="cuda").bfloat16()
        return lambda: indexer.logits(q, weights, view, context_lens=lens, block_table=table, max_k=keys)

    size = n * (keys * (KEY_BYTES + 4) + HEADS * (KEY_BYTES + 2) + pages * 4)
    return Case("index.logits", f"paged, {keys} keys", n, size, make, 2.0 * n * HEADS * WIDTH * keys, target=SHARE)


def _gathered(n: int, keys: int) -> Case:
    def make(i: int) -> Call:
        q, stored = _quantised(n, HEADS, WIDTH), _quantised(keys, WIDTH)
        weights = torch.randn(n, HEADS, device="cuda").bfloat16()
        first = torch.zeros(n, dtype=torch.int32, device="cuda")
        last = torch.full((n,), keys, dtype=torch.int32, device="cuda")
        return lambda: indexer.logits(q, weights, stored, span=(first, last), max_k=keys)

    size = n * (keys * 4 + HEADS * (KEY_BYTES + 2)) + keys * KEY_BYTES
    return Case("index.logits", f"gathered, {keys} keys", n, size, make, 2.0 * n * HEADS * WIDTH * keys, target=SHARE)


def _topk(n: int, width: int, k: int, dtype: torch.dtype) -> Case:
    def scores() -> Tensor:
        return torch.randn(n, width, device="cuda").to(dtype)

    def ours(i: int) -> Call:
        x, end = scores(), torch.full((n,), width, dtype=torch.int32, device="cuda")
        return lambda: indexer.topk(x, k, end=end)

    def theirs(i: int) -> Call:
        x = scores()
        return lambda: x.topk(k, dim=1, sorted=False)

    others: dict[str, Maker] = {"torch.topk, any order, any tie": theirs}
    size = float(n * width * dtype.itemsize + 4 * n * k)
    return Case("index.topk", f"{k} of {width} {str(dtype).removeprefix('torch.')}", n, size, ours, others=others)


def _block_max(n: int, width: int) -> Case:
    def ours(i: int) -> Call:
        x, valid = torch.randn(n, width, device="cuda"), torch.full((n,), width, dtype=torch.int32, device="cuda")
        return lambda: indexer.OPS["index.block_max"](x, valid, BLOCK)

    def theirs(i: int) -> Any:
        x = torch.randn(n, width, device="cuda")
        return lambda: x.view(n, -1, BLOCK).amax(2)

    size = 4.0 * n * width * (1 + 1 / BLOCK)
    return Case("index.block_max", f"{BLOCK} of {width}", n, size, ours, others={"torch amax": theirs}, target=0.8)
