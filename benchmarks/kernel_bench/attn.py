"""Sparse attention at the released model's sizes: 64 heads of 512, a window of 128 keys and 512 chosen ones.

The alternative is a composition of torch operations over keys that lie in bf16 already: gather, product, softmax,
product. It reads 1,024 bytes a key where ours reads 528 or 288.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kernel_bench.cases import Case
from kernel_bench.harness import Call

HEADS, WIDTH, WINDOW, CHOSEN = 64, 512, 128, 512
SCALE = WIDTH**-0.5
DECODE_ROWS, PREFILL_ROWS = (1, 8, 64, 256), (256, 4096)
RING, PAGE, BLOCK_STRIDE = 134, 128, 114_048
DEVICE = "cuda"


def cases(rows: Sequence[int] | None) -> list[Case]:
    """Decode with and without the extra cache, and prefill."""
    found = []
    for n in rows or DECODE_ROWS:
        for chosen in (CHOSEN, 0):
            found.append(
                Case(
                    "attn.sparse_decode",
                    f"{HEADS}x{WIDTH}, {WINDOW} + {chosen} keys",
                    n,
                    bytes=n * (WINDOW * 528 + chosen * 288 + 4 * HEADS * WIDTH + 4 * (WINDOW + chosen + HEADS)),
                    flop=4.0 * n * HEADS * WIDTH * (WINDOW + chosen),
                    make=_decode(n, chosen),
                    others={"torch": _composed(n, WINDOW + chosen, 64 * RING + 2048 * PAGE)},
                    target=0.6,
                )
            )
    for n in rows or PREFILL_ROWS:
        keys = n + WINDOW + max(1024, n)
        found.append(
            Case(
                "attn.sparse_prefill",
                f"{HEADS}x{WIDTH}, {WINDOW + CHOSEN} keys",
                n,
                bytes=n * (4 * HEADS * WIDTH + 4 * (WINDOW + CHOSEN + HEADS)) + keys * 2 * WIDTH,
                flop=4.0 * n * HEADS * WIDTH * (WINDOW + CHOSEN),
                make=_prefill(n, keys),
                others={"torch": _composed(n, WINDOW + CHOSEN, keys)},
                target=0.6,
            )
        )
    return found


def _generator(seed: int) -> torch.Generator:
    return torch.Generator(DEVICE).manual_seed(seed)


def _queries(rows: int, g: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """q, its output, and sinks."""
    q = torch.randn(rows, HEADS, WIDTH, device=DEVICE, generator=g).bfloat16()
    return q, torch.empty_like(q), torch.randn(HEADS, device=DEVICE, generator=g)


def _slots(rows: int, columns: int, count: int, g: torch.Generator) -> Tensor:
    return torch.randint(0, count, (rows, columns), device=DEVICE, generator=g, dtype=torch.int32)


def _cache(fmt: str, units: int, page: int, stride: int, size: int, g: torch.Generator) -> Any:
    """A cache of random codes with scales near one, like those of normalised keys."""
    from deepinfer_core.caches import CacheView

    raw = torch.randint(0, 256, (units * stride,), device=DEVICE, generator=g, dtype=torch.uint8)
    entries = raw.as_strided((units, page, size), (stride, size, 1))
    data = WIDTH if fmt == "v41" else WIDTH // 2
    if fmt == "v41":
        entries[..., :data].bitwise_and_(0xBF)  # magnitudes up to 1.875, no NaN
        entries[..., data:] = 127
    else:
        entries[..., data:] = 0x30
    return CacheView(entries, fmt, page, stride, WIDTH)


def _decode(rows: int, chosen: int) -> Callable[[int], Call]:
    shared: dict[str, Any] = {}

    def make(i: int) -> Call:
        from deepinfer_cuda.ops import attention

        g = _generator(i)
        if not shared:
            shared["window"] = _cache("v41", max(64, rows), RING, 70_752, 528, g)
            shared["main"] = _cache("v41_fp4", 2048, PAGE, BLOCK_STRIDE, 288, g)
        q, out, sink = _queries(rows, g)
        window, main = shared["window"], shared["main"]
        first = torch.arange(rows, device=DEVICE, dtype=torch.int32)[:, None] * RING  # a ring a row
        idx = first + (_slots(rows, 1, RING, g) + torch.arange(WINDOW, device=DEVICE, dtype=torch.int32)) % RING
        extra = {"extra": main, "extra_idx": _slots(rows, chosen, 2048 * PAGE, g)} if chosen else {}
        return lambda: attention.sparse_decode(q, window, idx, scale=SCALE, sink=sink, out=out, **extra)

    return make


def _prefill(rows: int, keys: int) -> Callable[[int], Call]:
    def make(i: int) -> Call:
        from deepinfer_cuda.ops import attention

        g = _generator(i)
        q, out, sink = _queries(rows, g)
        kv = torch.randn(keys, WIDTH, device=DEVICE, generator=g).bfloat16()
        recent = torch.arange(rows, device=DEVICE, dtype=torch.int32)[:, None] + torch.arange(
            WINDOW, device=DEVICE, dtype=torch.int32
        )
        chosen = rows + WINDOW + _slots(rows, CHOSEN, keys - rows - WINDOW, g).sort(-1).values
        indices = torch.cat([recent, chosen], 1).int().contiguous()
        return lambda: attention.sparse_prefill(q, kv, indices, scale=SCALE, sink=sink, out=out)

    return make


def _composed(rows: int, columns: int, keys: int) -> Callable[[int], Call]:
    shared: dict[str, Tensor] = {}

    def make(i: int) -> Call:
        g = _generator(i)
        if not shared:
            shared["kv"] = torch.randn(keys, WIDTH, device=DEVICE, generator=g).bfloat16()
        q, _, _ = _queries(rows, g)
        kv, idx = shared["kv"], _slots(rows, columns, keys, g).long().view(-1)

        def call() -> Tensor:
            gathered = kv.index_select(0, idx).view(rows, columns, WIDTH)
            scores = torch.bmm(q, gathered.transpose(1, 2)) * SCALE
            return torch.bmm(scores.softmax(-1, dtype=torch.float32).bfloat16(), gathered)

        return call

    return make
