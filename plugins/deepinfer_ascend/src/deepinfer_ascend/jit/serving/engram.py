"""Engram: rows of n-grams, their values, and the gated addition."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_ascend.jit.serving.parts import Served, is_int32, run

THREADS = 128
"""Values of a core at a time, where a thread makes one."""
NAMES = {torch.bfloat16: "bfloat16", torch.float32: "float32"}


def hash(served: Served, ids: Tensor, multipliers: Tensor, primes: Tensor, offsets: Tensor) -> Tensor:
    """``engram.hash`` of int32 ids."""
    rows, grams = ids.shape if ids.dim() == 2 else (0, 0)
    tables = (multipliers, primes, offsets)
    whole = grams > 1 and primes.dim() == 1 and len(primes) > 0 and len(primes) % (grams - 1) == 0
    if not rows or not is_int32(ids, dim=2) or not whole or any(x.dtype != torch.int64 for x in tables):
        return served.op(ids, *tables)  # type: ignore[no-any-return]
    if multipliers.shape != (grams,) or offsets.shape != primes.shape:
        return served.op(ids, *tables)  # type: ignore[no-any-return]
    out = torch.empty(rows, len(primes), dtype=torch.int64)
    given = {"ids": ids.contiguous(), "multipliers": multipliers.contiguous(), "primes": primes.contiguous()}
    sizes = {"grams": grams, "heads": len(primes) // (grams - 1)}
    given |= {"offsets": offsets.contiguous(), "out": out}
    run("hashed_rows", -(-out.numel() // THREADS), sizes, rows=rows, **given)
    return out


def fetch(served: Served, rows: Tensor, table: Any, *, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """``engram.fetch`` of quantised tables."""
    quantised = table.scales is not None and table.codes.shape[1] == 32 * table.scales.shape[1] and len(table.codes)
    if rows.dim() != 2 or not rows.numel() or dtype not in NAMES or not quantised or rows.dtype.is_floating_point:
        return served.op(rows, table, dtype=dtype)  # type: ignore[no-any-return]
    width, columns = table.codes.shape[1], rows.shape[1]
    out = torch.empty(len(rows), columns * width, dtype=dtype)
    given = {"places": rows.long().contiguous(), "codes": table.codes.contiguous(), "scales": table.scales.contiguous()}
    sizes = {"width": width, "columns": columns, "dtype": NAMES[dtype]}
    run("table_values", len(rows), sizes, out=out, rows=len(rows), size=len(table.codes), **given)
    return out


def gate(served: Served, x: Tensor, kv: Tensor, params: Any, *, mask: Tensor | None = None) -> Tensor:
    """``engram.gate`` where streams and keys have one dtype."""
    rows, c, width = x.shape if x.dim() == 3 else (0, 0, 0)
    fits = rows and x.dtype in NAMES and kv.dtype == x.dtype and kv.shape == (rows, (c + 1) * width)
    fits = fits and params.weight.shape == (c, width) and params.weight.dtype == torch.float32
    if not fits or not (mask is None or (mask.dtype == torch.bool and mask.shape == (rows,))):
        return served.op(x, kv, params, mask=mask)  # type: ignore[no-any-return]
    out, open_ = torch.empty_like(x), torch.ones(rows, dtype=torch.uint8) if mask is None else mask.to(torch.uint8)
    given = {"x": x.contiguous(), "kv": kv.contiguous().view(rows, c + 1, width), "weight": params.weight.contiguous()}
    sizes = {"width": width, "streams": c, "dtype": NAMES[x.dtype]}
    run("gated_rows", rows * c, sizes, open=open_, out=out, eps=params.norm_eps, rows=rows, **given)
    return out


SERVED = {"engram.hash": hash, "engram.fetch": fetch, "engram.gate": gate}
