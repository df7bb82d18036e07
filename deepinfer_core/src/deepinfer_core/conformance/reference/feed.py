"""What a decode step takes over from the step before, request by request (``spec/engine.md`` 5.4, 6.4, 7.4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def _source(remap: Sequence[int] | None, request: int) -> int:
    return request if remap is None else remap[request]


def feed_tokens(
    fresh: Sequence[Sequence[int]],
    seqlens_q: Sequence[int],
    remap: Sequence[int] | None,
    sampled: Sequence[int],
    *,
    vocab_size: int,
    drafts: Sequence[Sequence[int]] | None = None,
    accepted: Sequence[int] | None = None,
    win: Sequence[Sequence[int]] | None = None,
    table: Sequence[int] = (),
    pad: int = 0,
) -> tuple[list[int], list[list[int]]]:
    """Ids of all rows, and their n-gram windows (empty without ``win``), newest first."""
    ids: list[int] = []
    grams: list[list[int]] = []
    for i, count in enumerate(seqlens_q):
        source, k = _source(remap, i), len(fresh[i]) - 1
        if source >= 0:
            line = [sampled[source], *(drafts[source] if drafts is not None else [vocab_size - 1] * k)]
            line = [x if 0 <= x < vocab_size else vocab_size - 1 for x in line]
        else:
            line = list(fresh[i])
        ids += line[:count]
        if win is None:
            continue
        rejected = k - (min(max(accepted[source], 0), k) if source >= 0 and accepted is not None else 0)
        depth = len(win[i]) - k + 1
        for j in range(count):
            gram = []
            for r in range(depth):
                if j >= r:
                    token = line[j - r]
                    gram.append(table[token] if token < len(table) else -1)
                else:
                    gram.append(win[i][k + depth - 1 - rejected + j - r])
            end = next((r for r, x in enumerate(gram) if x < 0), depth)
            grams.append(gram[:end] + [pad] * (depth - end))
    return ids, grams


def correct_lengths(
    start: Sequence[int], seqlens_q: Sequence[int], remap: Sequence[int] | None, accepted: Sequence[int], num_draft: int
) -> list[int]:
    """A request that runs on ends earlier by the drafts that were refused; another one where the host says."""
    out = []
    for i, (begin, count) in enumerate(zip(start, seqlens_q, strict=True)):
        source = _source(remap, i)
        refused = num_draft - min(max(accepted[source], 0), num_draft) if source >= 0 else 0
        out.append(begin + count - refused)
    return out


def verify_lengths(confidence: Sequence[Sequence[float]], remap: Sequence[int] | None, budget: int) -> list[int]:
    """One row each, and the most certain drafts of all: product of confidences in fp32, then row, then draft."""
    requests = len(confidence) if remap is None else len(remap)
    drafts = []
    for i in range(requests):
        source = _source(remap, i)
        known = 0 <= source < len(confidence)
        product = np.float32(1.0)
        for j, value in enumerate(confidence[source if known else 0] if confidence else ()):
            factor = np.float32(0.0 if np.isnan(value) or not known else min(max(value, 0.0), 1.0))
            product = np.float32(product * factor)
            drafts.append((-float(product), i, j))
    rows = [1] * requests
    for _, i, _ in sorted(drafts)[: budget - requests]:
        rows[i] += 1
    return rows
