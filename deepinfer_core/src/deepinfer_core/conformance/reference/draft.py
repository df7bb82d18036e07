"""Rows of a block drafter, one after the other (``spec/model.md`` 2.11, ``spec/kernels.md`` 2.5)."""

from __future__ import annotations

from collections.abc import Sequence


def draft_inputs(
    sampled: Sequence[int],
    last: Sequence[int],
    slot: Sequence[int],
    *,
    block: int,
    window: int,
    ring: int,
    noise: int,
    vocab_size: int,
) -> dict[str, list[int] | list[list[int]]]:
    """Each row sees the window that ends at ``last`` (keys of the ring), and the whole of its own block."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    seen: list[list[int]] = []
    own: list[list[int]] = []
    for token, end, place in zip(sampled, last, slot, strict=True):
        keys = [place * ring + p % ring for p in range(max(0, end - window + 1), end + 1)]
        mine = [place * block + j for j in range(block)]
        for j in range(block):
            ids.append(token if j == 0 and 0 <= token < vocab_size else noise)
            positions.append(end + 1 + j)
            slots.append(mine[j])
            seen.append(keys + [-1] * (window - len(keys)))
            own.append(mine)
    return {"input_ids": ids, "positions": positions, "slot_draft": slots, "window_index": seen, "draft_index": own}
