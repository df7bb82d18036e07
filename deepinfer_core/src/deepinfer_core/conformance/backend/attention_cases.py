"""Attention cases: lists of keys with holes, and queries whose softmax hangs on one key each.

Averaged over hundreds of random keys, one more or less drowns in the tolerance of the op. Here each head looks for one
key, the first or last visible one, one behind the length, an unlisted one: it gets most of the weight if it is visible,
and if it is not, whoever sees it all the same gives a wholly different result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from deepinfer_core.conformance.arena import LAYERS, MAIN, SWA, UNITS, Arena, specs
from deepinfer_core.conformance.backend.offered import partner
from deepinfer_core.conformance.failures import require_equal
from deepinfer_core.conformance.model_sizes import ModelSizes, offered_heads
from deepinfer_core.conformance.reference import attention as reference
from deepinfer_core.types import CacheLayer, CacheSpec

KEY_SIZE = 0.25
"""Standard deviation of keys. The classes have an absolute part; rounded probabilities use it up with larger ones."""


def needle_queries(
    keys: Tensor, targets: Sequence[Sequence[int]], visible: Sequence[Sequence[int]], scale: float
) -> Tensor:
    """fp64 ``[T, h, D]``: head i of row t scores ``ln(visible keys) + 1.5`` with ``keys[targets[t][i]]``.

    If that key is not among ``visible[t]``, the head has a visible one as well, and would prefer the hidden one by far.

    :param keys: fp64 ``[n, D]``, finite where they are a target or visible.
    """
    out = torch.zeros(len(targets), len(targets[0]) if targets else 0, keys.shape[1], dtype=torch.float64)
    for t, row in enumerate(targets):
        wanted = math.log(max(len(visible[t]), 1)) + 1.5
        for i, target in enumerate(row):
            out[t, i] = _towards(keys[target], wanted, scale)
            if target not in visible[t]:
                out[t, i] *= 2
                if visible[t]:
                    out[t, i] += _towards(keys[visible[t][i % len(visible[t])]], wanted, scale)
    return out


def _towards(key: Tensor, score: float, scale: float) -> Tensor:
    return key * (score / float(key @ key) / scale)


def targets_of(listed: Sequence[int], hidden: Sequence[int], heads: int, generator: torch.Generator) -> list[int]:
    """A key for each head: first and last listed, hidden ones, then any."""
    if not listed:
        pool = list(hidden) or [0]
        return [pool[i % len(pool)] for i in range(heads)]
    fixed = [listed[0], listed[-1], *list(hidden)[:4], listed[len(listed) // 2]]
    rest = torch.randint(0, len(listed), (max(0, heads - len(fixed)),), generator=generator).tolist()
    return [*fixed, *(listed[i] for i in rest)][:heads]


def sinks(heads: int, generator: torch.Generator, visible: int) -> Tensor:
    """fp32 ``[h]`` of the size of the row's own log-sum-exp: none may be left out, nor count as a value."""
    return (torch.randn(heads, generator=generator) * 1.5 + math.log(visible + 1) + 1).float()


def judge(
    tolerance: Any, op: str, got: Any, expected: tuple[Tensor, Tensor], dtype: torch.dtype, **facts: object
) -> None:
    """Output and log-sum-exp in their classes, and the direction of each row of the output."""
    __tracebackhide__ = True
    out, lse = got
    require_equal(out.dtype, dtype, "the output has the dtype of the query", op=op, **facts)
    require_equal(lse.dtype, torch.float32, "the log-sum-exp is fp32", op=op, **facts)
    tolerance(op)(out, expected[0], **facts)
    tolerance(op, output="lse")(lse, expected[1], **facts)
    if out.shape[0]:
        tolerance(op, output="cosine")(out.flatten(1), expected[0].flatten(1), rows=True, **facts)


def prefill_reference(
    q: Tensor, kv: Tensor, indices: Sequence[Sequence[int]], lengths: Sequence[int] | None, scale: float,
    sink: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """fp64 output and log-sum-exp of all rows."""
    rows = [reference.listed(row, None if lengths is None else lengths[t], len(kv)) for t, row in enumerate(indices)]
    return reference.attend_rows(q, [kv.double()[row] for row in rows], scale, sink)


@frozen
class Buffer:
    """A prefill case on the host: query, key buffer, indices with their lengths, sinks."""

    q: Tensor
    kv: Tensor
    indices: list[list[int]]
    columns: int
    lengths: list[int]
    sink: Tensor
    scale: float

    def tensors(self, device: Any) -> tuple[Tensor, Tensor, Tensor]:
        rows = torch.tensor(self.indices, dtype=torch.int32, device=device).reshape(-1, self.columns)
        return self.q.to(device), self.kv.to(device), rows

    def length_tensor(self, device: Any) -> Tensor:
        return torch.tensor(self.lengths, dtype=torch.int32, device=device)


def buffer(
    backend: Any, sizes: ModelSizes, generator: torch.Generator, *, rows: int, keys: int, columns: int,
    dtype: torch.dtype = torch.bfloat16,
) -> Buffer:  # fmt: skip
    """Rows with a full list, holes, a tail of -1, keys listed twice, indices past the buffer, and nothing at all."""
    heads = offered_heads(backend, sizes.heads)
    kv = (torch.randn(keys, sizes.width, generator=generator) * KEY_SIZE).to(dtype)
    indices, lengths, targets, visible = [], [], [], []
    for t in range(rows):
        row = torch.randint(0, keys, (columns,), generator=generator).tolist()
        length = columns
        if t % 6 == 1:
            row[columns // 2 :] = [-1] * (columns - columns // 2)
        elif t % 6 == 2:
            row[::3] = [-1] * len(row[::3])
            row[-1] = keys + t
        elif t % 6 == 3:
            length = columns // 3
        elif t % 6 == 4:
            row = [row[0]] * min(3, columns) + row[min(3, columns) :]
            length = columns - 1
        elif t % 6 == 5:
            row, length = ([-1] * columns, columns) if t % 12 == 5 else (row, 0)
        seen = reference.listed(row, length, keys)
        hidden = [i for i in row[length : length + 2] if 0 <= i < keys] + [i for i in range(keys) if i not in seen][:2]
        indices.append(row)
        lengths.append(length)
        targets.append(targets_of(seen, hidden, heads, generator))
        visible.append(seen)
    q = needle_queries(kv.double(), targets, visible, sizes.scale).to(dtype)
    return Buffer(q.reshape(rows, heads, sizes.width), kv, indices, columns, lengths, sinks(heads, generator, columns),
                  sizes.scale)  # fmt: skip


@frozen
class Caches:
    """A decode case: views with the entries on the device, slots with their lengths, and each row's keys in fp64."""

    q: Tensor
    window: Any
    idx: list[list[int]]
    lengths: list[int]
    extra: Any
    extra_idx: list[list[int]]
    extra_lengths: list[int]
    keys: list[Tensor]
    keys_by_length: list[Tensor]
    sink: Tensor
    scale: float

    def options(self, device: Any, *, lengths: bool, sink: bool) -> dict[str, Any]:
        rows = self.q.shape[0]

        def i32(values: Any, *shape: int) -> Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device).reshape(shape)

        out: dict[str, Any] = {"scale": self.scale, "sink": self.sink.to(device) if sink else None}
        if lengths:
            out["lengths"] = i32(self.lengths, rows)
        if self.extra is not None:
            out |= {"extra": self.extra, "extra_idx": i32(self.extra_idx, rows, -1 if rows else 3)}
            if lengths:
                out["extra_lengths"] = i32(self.extra_lengths, rows)
        return out

    def expected(self, *, lengths: bool, sink: bool) -> tuple[Tensor, Tensor]:
        keys = self.keys_by_length if lengths else self.keys
        return reference.attend_rows(self.q, keys, self.scale, self.sink if sink else None)


def slots_of(t: int, count: int, arena: Arena, generator: torch.Generator) -> tuple[list[int], int]:
    """Slots of one row: full, with holes, a tail of -1, a slot twice, none; and a length. All rows use slot edges."""
    last = arena.slots - 1
    row = torch.randperm(arena.slots, generator=generator).repeat(2)[:count].tolist()
    row[:2] = [last, int(arena.view.page) - 1][: len(row[:2])]
    length = count
    if t % 6 == 1:
        row[count - count // 3 :] = [-1] * (count // 3)
    elif t % 6 == 2:
        row[::2] = [-1] * len(row[::2])
    elif t % 6 == 3:
        length = max(0, count // 2)
    elif t % 6 == 4 and count > 2:
        row[2] = row[1]
    elif t % 6 == 5:
        length = 0
    return row, length


def cached(
    backend: Any, sizes: ModelSizes, generator: torch.Generator, *, rows: int, window: int, extra: str | None,
    columns: int, fmt: str | None = None, dtype: torch.dtype = torch.bfloat16,
) -> Caches:  # fmt: skip
    """All memory is NaN but the entries that rows list, in whatever layer and unit; slot 0 is among those that are not.

    The window cache has the format of a ``swa`` pool; ``extra`` names that of the extra cache, None: there is none.
    """
    heads = offered_heads(backend, sizes.heads)
    kv = extra or partner(backend, "kv")
    made = specs(kv, partner(backend, "index"), width=sizes.width, index_width=sizes.index_width, block=sizes.block,
                 ring=sizes.ring)  # fmt: skip
    if fmt is not None:
        made[2] = CacheSpec(SWA, "swa", [CacheLayer(n, sizes.ring, fmt, sizes.width) for n in LAYERS])
    caches = backend.ops["cache.alloc"](made, dict.fromkeys(("main", "index", "swa", "state"), UNITS))
    arenas = [Arena.poisoned(backend.ops["cache.view"](caches, SWA, LAYERS[1]), sizes.width)]
    if extra is not None:
        arenas.append(Arena.poisoned(backend.ops["cache.view"](caches, MAIN, LAYERS[1]), sizes.width))
    lists: list[list[tuple[list[int], int]]] = []
    for arena, count in zip(arenas, (window, columns), strict=False):
        listed = [slots_of(t + (arena is not arenas[0]), count, arena, generator) for t in range(rows)]
        listed = [([s or 1 for s in row], length) for row, length in listed]
        used = sorted({s for row, _ in listed for s in row if s >= 0})
        values = torch.randn(len(used), sizes.width, generator=generator) * KEY_SIZE
        arena.write(used, values.to(torch.float32 if arena.view.format == "f32" else torch.bfloat16))
        arena.upload()
        lists.append(listed)
    keys, short, queries = [], [], [torch.zeros(0, heads, sizes.width, dtype=torch.float64)]
    for t in range(rows):
        found = [[s for s in listed[t][0] if s >= 0] for listed in lists]
        cut = [[s for s in listed[t][0][: listed[t][1]] if s >= 0] for listed in lists]
        keys.append(torch.cat([a.values(f) for a, f in zip(arenas, found, strict=True)]))
        short.append(torch.cat([a.values(f) for a, f in zip(arenas, cut, strict=True)]))
        first, total = len(found[0]), len(keys[t])
        edges = [
            max(first - 1, 0),
            min(first, total - 1),
            *(len(c) for c, f in zip(cut, found, strict=True) if len(c) < len(f)),
        ]
        targets = [*edges, *targets_of(list(range(total)), [], heads, generator)][:heads] if total else [0] * heads
        pool = keys[t] if total else torch.ones(1, sizes.width, dtype=torch.float64)
        queries.append(needle_queries(pool, [targets], [list(range(total))], sizes.scale))
    q = torch.cat(queries).to(dtype)
    second = lists[1] if extra is not None else [([], 0)] * rows
    return Caches(
        q, arenas[0].view, [r for r, _ in lists[0]], [n for _, n in lists[0]],
        arenas[1].view if extra is not None else None, [r for r, _ in second], [n for _, n in second],
        keys, short, sinks(heads, generator, window + columns), sizes.scale,
    )  # fmt: skip
