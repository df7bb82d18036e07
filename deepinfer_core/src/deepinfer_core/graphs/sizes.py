"""How many rows are recorded: 1, 2, 4, then every 8, and the maximum (``spec/engine.md`` 0.2)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

INTERVAL = 8


def captured_sizes(max_rows: int, rows_per_request: int = 1, *, interval: int = INTERVAL) -> tuple[int, ...]:
    """Sizes in ascending order, at most ``max_rows``, which is one of them.

    Powers of two below ``interval``, its multiples, and, for steps of less than two intervals, the rows of whole
    requests: there a placeholder is a large part of a step.

    :param rows_per_request: Rows of a request in a step with all its drafts.
    """
    sizes = {size for size in (1, 2, 4) if size < interval}
    sizes |= set(range(interval, max_rows + 1, interval))
    if rows_per_request > 1:
        sizes |= {n * rows_per_request for n in range(1, 2 * interval // rows_per_request + 1)}
    return (*sorted(size for size in sizes if size < max_rows), max_rows)


def covering(sizes: Sequence[int], rows: int) -> int | None:
    """The smallest of ``sizes`` (ascending) that holds ``rows``; None: none does."""
    place = bisect_left(sizes, rows)
    return sizes[place] if place < len(sizes) else None
