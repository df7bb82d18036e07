"""Engram of bf16 streams: n-gram hashing, table rows, gated addition (``spec/model.md`` 2.3)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_cuda.host_table import host_table
from deepinfer_cuda.plain import plain_op
from deepinfer_cuda.tl.engram import fetch_rows, gate_streams, gate_threads, hash_rows

INTEGERS = {torch.int32: "int32", torch.int64: "int64"}
MOST_COLUMNS, MOST_GRAMS = 64, 8
GATE_GRID = 99
"""Blocks a stream: with four streams three blocks on each of 132 multiprocessors."""


def prepare(weight: Tensor, scale: Tensor | None = None) -> Any:
    """A table from checkpoint tensors, shared, not copied: FP8 ``[rows, d]`` with E8M0 ``[rows, d / 32]``, or bf16 or
    fp32 rows without scales. Tables in the host's memory stay there and are read over the bus.

    :raises ShapeContractError: shapes or dtypes do not fit.
    :raises CapacityError: the host's memory cannot be locked.
    """
    table = plain_op("engram.prepare")(weight, scale)
    if weight.is_cuda or not torch.cuda.is_available():
        return table
    return host_table(table.codes, table.scales, torch.device("cuda", torch.cuda.current_device()))


def hash(ids: Tensor, multipliers: Tensor, primes: Tensor, offsets: Tensor) -> Tensor:
    """Table rows of each n-gram: int64 ``[T, columns]``.

    :param ids: int32 or int64 ``[T, G]``, column r the compressed id of the token r places back.
    :param multipliers: int64 ``[G]``; ``primes``, ``offsets`` int64 ``[columns]``, n-gram order major, then head.
    :raises ShapeContractError: shapes or dtypes do not fit.
    """
    columns, grams = primes.numel(), multipliers.numel()
    long = {t.dtype for t in (multipliers, primes, offsets)} == {torch.int64}
    shapes = ids.dim() == 2 and primes.shape == offsets.shape == (columns,) and multipliers.shape == (grams,)
    takes = long and shapes and ids.is_cuda and ids.dtype in INTEGERS and 1 < grams <= MOST_GRAMS
    if not takes or ids.shape[1] != grams or columns % (grams - 1) or not 0 < columns <= MOST_COLUMNS:
        result: Tensor = plain_op("engram.hash")(ids, multipliers, primes, offsets)
        return result
    rows = torch.empty(ids.shape[0], columns, dtype=torch.int64, device=ids.device)
    if ids.shape[0]:
        launch = hash_rows(grams=grams, columns=columns, ids=INTEGERS[ids.dtype])
        launch(ids.contiguous(), multipliers, primes, offsets, rows)
    return rows


def fetch(rows: Tensor, table: Any, *, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Dequantised rows side by side: ``[T, columns]`` -> ``[T, columns * d]``.

    :raises ShapeContractError: shapes or dtypes do not fit.
    """
    width = table.codes.shape[1]
    quantised = table.scales is not None and table.codes.is_cuda and table.codes.is_contiguous()
    takes = quantised and rows.is_cuda and rows.dim() == 2 and rows.dtype in INTEGERS and dtype == torch.bfloat16
    if not takes or width % 32 or not rows.shape[1]:
        result: Tensor = plain_op("engram.fetch")(rows, table, dtype=dtype)
        return result
    count, columns = rows.shape
    out = torch.empty(count, columns * width, dtype=torch.bfloat16, device=rows.device)
    if count:
        launch = fetch_rows(columns=columns, width=width, rows=INTEGERS[rows.dtype])
        words = out.view(torch.uint32).view(count * columns, width // 2)
        launch(rows.contiguous().view(-1), table.codes.view(torch.uint32), table.scales, words)
    return out


def gate(x: Tensor, kv: Tensor, params: Any, *, mask: Tensor | None = None) -> Tensor:
    """``X_j + g_j v``, g from the normalised dot product of stream and key; ``[T, c, H]`` in the dtype of ``x``.

    :param kv: ``[T, (c + 1) * H]``: c keys, stream-major, then the shared value.
    :param params: of ``engram.prepare_gate``. :param mask: bool ``[T]``, False (an image row) leaves the row as it is.
    :raises ShapeContractError: shapes or dtypes do not fit.
    """
    rows, c, width = x.shape if x.dim() == 3 else (0, 0, 0)
    takes = x.is_cuda and x.dtype == kv.dtype == torch.bfloat16 and kv.is_cuda and c > 0 and gate_threads(width) > 0
    fits = kv.shape == (rows, (c + 1) * width) and params.weight.shape == (c, width)
    if mask is not None and (mask.shape != (rows,) or mask.dtype != torch.bool or not mask.is_cuda):
        fits = False
    if not takes or not fits:
        result: Tensor = plain_op("engram.gate")(x, kv, params, mask=mask)
        return result
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if rows:
        launch = gate_streams(streams=c, width=width, masked=mask is not None)
        keys = kv.contiguous().view(rows, c + 1, width)
        chosen = params.weight.new_empty(1, dtype=torch.bool) if mask is None else mask.contiguous()
        launch(x.contiguous(), keys, params.weight, chosen, out, params.norm_eps, min(rows, GATE_GRID))
    return out


OPS = {"engram.prepare": prepare, "engram.hash": hash, "engram.fetch": fetch, "engram.gate": gate}
DELEGATED = {
    "engram.prepare_gate": "once for each layer, at load",
}
"""What the op of ``cpu`` does on this device, and why that is enough."""
