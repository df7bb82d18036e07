"""The time model of ``spec/engine.md`` 2.8 written out plainly: loops and Python integers, no closed forms.

What `CostModel.predict_ns` and the prefill pass of the core must compute, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer_native.cost import FRACTION, AttentionKind, CostModel, CostRow, fixed

MOST = 1 << 104
"""A sum ends here: far above any budget."""
MAX_NS = 2**63 - 1


def pairs(kind: AttentionKind, row: CostRow, keep: int = 0) -> int:
    """(query, key) pairs that a row reads. ``keep``: of the model."""
    first = min(row.start, row.valid_start) if kind.shift else 0
    positions = range(row.start, row.start + row.q)
    if kind.kept and keep:
        floor = row.full_len - keep
        positions = range(max(row.start, min(floor, positions[-1])), row.start + row.q)
        first = max(first, floor) if kind.shift else 0
    total = 0
    for position in positions:
        keys = max(0, position - first + 1) // kind.ratio
        blocks = (keys + kind.block - 1) // kind.block
        total += kind.block * (min(blocks, kind.cap) if kind.cap else blocks)
    return total


def kept_rows(model: CostModel, row: CostRow) -> int:
    """Rows of the decoder half: those of the last ``keep`` prompt positions, but at least one of each chunk."""
    if not model.keep:
        return row.q
    return max(1, sum(p >= row.full_len - model.keep for p in range(row.start, row.start + row.q)))


def row_cost(model: CostModel, row: CostRow) -> int:
    """One request's share, with ``FRACTION`` bits of fraction."""
    cost = fixed(model.seq_ns) + fixed(model.row_ns) * row.q
    cost += fixed(model.kept_ns) * kept_rows(model, row) + fixed(model.logit_ns) * row.logit_rows
    return cost + sum(fixed(kind.pair_ns) * pairs(kind, row, model.keep) for kind in model.attention)


def predict_ns(model: CostModel, rows: Sequence[CostRow], factor: int = 1 << FRACTION) -> int:
    """Time of a step. ``factor``: the feedback's correction, with ``FRACTION`` bits of fraction."""
    cost = fixed(model.base_ns)
    for row in rows:
        cost = min(cost + row_cost(model, row), MOST)
    return min((cost * factor) >> (2 * FRACTION), MAX_NS)


def tera_flops(model: CostModel, rows: Sequence[CostRow]) -> tuple[float, float]:
    """(``flops_attn``, ``flops_total``) of a step, in 1e12."""
    attention = 0.0
    for kind in model.attention:
        attention += sum(pairs(kind, row, model.keep) for row in rows) * kind.pair_flops
    others = sum(row.q for row in rows) * model.row_flops
    others += sum(kept_rows(model, row) for row in rows) * model.kept_flops
    others += sum(row.logit_rows for row in rows) * model.logit_flops
    return attention / 1e12, (attention + others) / 1e12


def largest_chunk(model: CostModel, rows: Sequence[CostRow], following: CostRow, budget_ns: int, min_chunk: int) -> int:
    """The largest of all chunks that fits, tried one after the other."""
    least = min(min_chunk, following.q)
    for q in range(following.q, least - 1, -1):
        chunk = CostRow(following.start, q, following.full_len, following.valid_start, following.logit_rows)
        if predict_ns(model, [*rows, chunk]) <= budget_ns:
            return q
    return 0 if rows else least


def tenth_root(x: float) -> float:
    """``x ** 0.1`` by Newton's method in doubles, as the core does it."""
    y = 2.0
    for _ in range(32):
        y3 = y * y * y
        y9 = y3 * y3 * y3
        y = y - (y9 * y - x) / (10 * y9)
    return y


def next_factor(factor: float, predicted_ns: int, measured_ns: int) -> float:
    """The correction after one observed step."""
    ratio = min(max(measured_ns / predicted_ns, 1 / 1024), 1024.0)
    return min(max(factor * tenth_root(ratio), 0.5), 2.0)


def fixed_factor(factor: float) -> int:
    """The correction as predictions use it."""
    return int(factor * (1 << FRACTION) + 0.5)
