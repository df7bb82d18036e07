"""The time model of a step (``spec/engine.md`` 2.8): coefficients, and predictions in the core's integers."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from attrs import field, frozen

from deepinfer_native.errors import ArgumentError
from deepinfer_native.library import call, ffi, lib

FRACTION = 20
"""Bits of fraction of a coefficient inside the core: an indexer pair costs less than 0.01 ns on an accelerator."""
MAX_KINDS = 8
MAX_TIME_NS = 2.0**30
"""Most that a step, a request or a row may cost."""
MAX_PAIR_NS = 2.0**20
"""Most that a (query, key) pair may cost; checked where the core gets the model."""


def _time(value: Any) -> float:
    try:
        time = float(value)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"a time must be a number of nanoseconds, got {value!r}", field="cost model") from error
    if not 0 <= time <= MAX_TIME_NS:  # NaN fails too
        raise ArgumentError(f"a time must be from 0 to 2**30 ns, got {value!r}", field="cost model")
    return time


def fixed(ns: float) -> int:
    """A coefficient as the core keeps it, rounded to ``FRACTION`` bits (half to even)."""
    return round(ns * (1 << FRACTION))


def _keys_up_to(n: int, ratio: int, cap: int) -> int:
    """``sum(min(t // ratio, cap) for t in 1 .. n)``; ``cap`` 0 is none."""
    blocks = n // ratio
    rest = 0
    if cap and blocks > cap:
        rest = (n - ratio * cap) * cap
        n, blocks = ratio * cap, cap
    return blocks * (n + 1) - ratio * blocks * (blocks + 1) // 2 + rest


@frozen
class AttentionKind:
    """One way of attending: the query at position p reads ``min((p + 1) // ratio, cap)`` keys.

    ``ratio``: positions of one key. ``cap``: most keys, 0 = no cap (window: its width; top-k attention: k).
    ``shift``: positions count from the row's ``valid_start`` (sliding window). ``block``: keys that are read together;
    above 1, ``cap`` counts blocks. ``pair_ns``: time of one (query, key) pair, ns; ``pair_flops``: its operations, a
    multiply-add counted as 2. ``kept``: of rows that the decoder half runs, whose window begins where they do.
    """

    ratio: int
    cap: int = 0
    shift: bool = False
    block: int = 1
    pair_ns: float = field(default=0.0, converter=_time)
    pair_flops: float = field(default=0.0, converter=float)
    kept: bool = False

    def pairs(self, start: int, end: int, valid_start: int = 0) -> int:
        """(query, key) pairs of the positions ``[start, end)``; blocks count as whole blocks of keys.

        With ``kept`` the positions are those of kept rows, and ``valid_start`` is the first of all of them.
        """
        if self.shift:
            first = min(start, valid_start)
            start, end = start - first, end - first
        ratio, up = self.ratio * self.block, self.ratio * (self.block - 1)
        return self.block * (_keys_up_to(end + up, ratio, self.cap) - _keys_up_to(start + up, ratio, self.cap))


def _kinds(kinds: Iterable[AttentionKind]) -> tuple[AttentionKind, ...]:
    return tuple(kinds)


@frozen
class CostRow:
    """One request of a step: positions ``[start, start + q)`` of ``full_len`` prompt tokens (decode: ``start + q``).

    ``full_len`` 0: the decoder half runs all rows, whatever the model's ``keep`` is. ``logit_rows``: 1 in prefill,
    ``q`` in decode.
    """

    start: int
    q: int
    full_len: int
    valid_start: int = 0
    logit_rows: int = 1


@frozen(kw_only=True)
class CostModel:
    """Times in ns: of a step, of each request, of each row, of each row that the decoder half runs, of each row with
    logits, and of the pairs of up to 8 attention kinds. Raises ArgumentError for a time outside 0 .. 2**30 (pairs:
    2**20).

    ``keep``: rows of a prompt that the decoder half runs (bounded replay, 3.7); 0 = all. ``*_flops``: operations of the
    same things, 0 .. 1e18, for ``flops_attn`` and ``flops_total`` of the record; they change no decision.
    """

    base_ns: float = field(default=0.0, converter=_time)
    seq_ns: float = field(default=0.0, converter=_time)
    row_ns: float = field(default=0.0, converter=_time)
    kept_ns: float = field(default=0.0, converter=_time)
    logit_ns: float = field(default=0.0, converter=_time)
    attention: tuple[AttentionKind, ...] = field(default=(), converter=_kinds)
    keep: int = 0
    row_flops: float = field(default=0.0, converter=float)
    kept_flops: float = field(default=0.0, converter=float)
    logit_flops: float = field(default=0.0, converter=float)

    def predict_ns(self, rows: Sequence[CostRow]) -> int:
        """Time of a step of ``rows``, ns, rounded down; ``2**63 - 1`` where it does not fit."""
        out = ffi.new("int64_t *")
        model, listed = to_c(self), _rows(rows)
        call(lib.di_cost_predict, model, listed, len(rows), out)
        return int(out[0])

    def largest_chunk(self, rows: Sequence[CostRow], following: CostRow, *, budget_ns: int, min_chunk: int = 1) -> int:
        """Largest chunk of ``following``, at most its ``q``, with which the step stays within ``budget_ns``.

        If not even ``min_chunk`` does: 0 when the step has ``rows``, else ``min_chunk`` (progress beats the budget).
        """
        out = ffi.new("int32_t *")
        call(lib.di_cost_chunk, to_c(self), _rows(rows), len(rows), _rows([following]), budget_ns, min_chunk, out)
        return int(out[0])


def _rows(rows: Sequence[CostRow]) -> Any:
    try:
        return ffi.new("di_cost_row[]", [(r.start, r.q, r.full_len, r.valid_start, r.logit_rows) for r in rows])
    except (TypeError, AttributeError, OverflowError) as error:
        raise ArgumentError(f"a row does not fit: {error}", field="rows") from error


def to_c(model: CostModel) -> Any:
    """``di_cost_model *``. Raises ArgumentError for what is no model, or does not fit its field."""
    if not isinstance(model, CostModel):
        raise ArgumentError(f"a CostModel is needed, got {model!r:.80}", field="cost model")
    out = ffi.new("di_cost_model *")
    out.struct_size = ffi.sizeof("di_cost_model")
    if len(model.attention) > MAX_KINDS:
        raise ArgumentError(f"{len(model.attention)} attention kinds, at most {MAX_KINDS}", field="attention")
    out.num_kinds = len(model.attention)
    try:
        out.keep = operator.index(model.keep)
        for name in ("base", "seq", "row", "kept", "logit"):
            setattr(out, name, fixed(getattr(model, f"{name}_ns")))
        out.row_flops, out.kept_flops, out.logit_flops = model.row_flops, model.kept_flops, model.logit_flops
        for to, kind in zip(out.kind, model.attention, strict=False):
            to.pair, to.ratio, to.cap = fixed(kind.pair_ns), kind.ratio, kind.cap
            to.shift, to.block, to.flops, to.kept = int(kind.shift), kind.block, kind.pair_flops, int(kind.kept)
    except (TypeError, OverflowError) as error:
        raise ArgumentError(f"a value does not fit: {error}", field="cost model") from error
    return out
