"""Engram of the released model: 24 columns of rows of 256, four streams of 5120."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from deepinfer_cuda.ops import engram
from deepinfer_cuda.plain import plain_op
from kernel_bench import peers
from kernel_bench.cases import Case
from kernel_bench.harness import Call

ROWS = (1, 8, 64, 256, 4096)
STREAMS, WIDTH = 4, 5120
GRAMS, COLUMNS, ROW = 4, 24, 256
ENTRIES = 1_000_000
"""Rows of the table here: 256 MB, several times the second-level cache. A released one has sixteen million a column."""
SHARE = 0.80


def cases(rows: Sequence[int] | None) -> list[Case]:
    return [make(m) for m in rows or ROWS for make in (_hash, _fetch, _gate)]


def _generator(i: int) -> torch.Generator:
    return torch.Generator(device="cuda").manual_seed(3000 + i)


def _hash(m: int) -> Case:
    def ours(i: int) -> Call:
        g = _generator(i)
        ids = torch.randint(0, 99092, (m, GRAMS), generator=g, device="cuda", dtype=torch.int32)
        multipliers = torch.randint(2**40, 2**45, (GRAMS,), generator=g, device="cuda") * 2 + 1
        primes = torch.randint(15_999_000, 16_000_000, (COLUMNS,), generator=g, device="cuda")
        return lambda: engram.hash(ids, multipliers, primes, primes)

    return Case("engram.hash", f"{COLUMNS} columns", m, m * (4.0 * GRAMS + 8.0 * COLUMNS), ours)


@lru_cache(maxsize=1)
def _table() -> Any:
    g = _generator(0)
    codes = torch.randint(0, 127, (ENTRIES, ROW), generator=g, device="cuda", dtype=torch.uint8)
    scale = torch.randint(100, 150, (ENTRIES, ROW // 32), generator=g, device="cuda", dtype=torch.uint8)
    return plain_op("engram.prepare")(codes.view(torch.float8_e4m3fn), scale)


def _fetch(m: int) -> Case:
    def ours(i: int) -> Call:
        rows = torch.randint(0, ENTRIES, (m, COLUMNS), generator=_generator(i + 1), device="cuda")
        return lambda: engram.fetch(rows, _table())

    def gathered(i: int) -> Call:
        """The codes alone, gathered and not dequantised."""
        rows = torch.randint(0, ENTRIES, (m * COLUMNS,), generator=_generator(i + 1), device="cuda")
        return lambda: _table().codes.index_select(0, rows)

    moved = m * COLUMNS * (ROW + ROW / 32 + 8 + 2.0 * ROW)
    others = {"torch gather of codes": gathered}
    return Case("engram.fetch", f"{COLUMNS} rows of {ROW}", m, moved, ours, others=others, target=SHARE)


def _gate(m: int) -> Case:
    def ours(i: int) -> Call:
        g = _generator(i)
        x = torch.randn(m, STREAMS, WIDTH, generator=g, device="cuda").to(torch.bfloat16)
        kv = torch.randn(m, (STREAMS + 1) * WIDTH, generator=g, device="cuda").to(torch.bfloat16)
        norms = torch.randn(2, STREAMS, WIDTH, generator=g, device="cuda")
        params = plain_op("engram.prepare_gate")(norms[0], norms[1])
        return lambda: engram.gate(x, kv, params)

    moved = 2.0 * m * WIDTH * (3 * STREAMS + 1) + 4.0 * STREAMS * WIDTH
    others = peers.peers(peers.engram_gate(m, STREAMS, WIDTH))
    return Case("engram.gate", "4 x 5120", m, moved, ours, others=others, target=SHARE)
