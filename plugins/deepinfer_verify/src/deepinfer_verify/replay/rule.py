"""The rule of bounded replay, one row at a time: nothing here knows of arrays, offsets or slots.

``N`` prompt tokens, window ``W``, the decoder half keeps the last ``keep`` rows. A prompt whose first ``hit`` positions
have their compressed keys in the cache runs from ``start`` on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, get_args

from attrs import frozen

Mode = Literal["off", "mask", "compact"]
MODES: tuple[Mode, ...] = get_args(Mode)


@frozen
class Geometry:
    """Sizes of a model and of its engine."""

    window: int
    keep: int
    """Rows at the end of a prompt that the decoder half keeps; at least window + rollback."""
    block: int
    """Tokens of a cache block: what a hit is a multiple of."""
    ring: int
    """Positions that a sequence's window cache holds."""
    ratios: tuple[int, ...]
    """Of the compressed keys: one key for so many positions."""
    exact: tuple[int, int] | None = None
    """Positions that run again behind a hit so that windows are those of a cold run: of its end with mode ``off``, and
    in front of the first row that is kept, with the others (4.5). None: one window, as 5.2 has it."""


@frozen
class Prompt:
    """One request before it decodes."""

    length: int
    mode: Mode
    start: int = 0
    """First position that runs, and the first whose window keys exist."""
    hit: int = 0
    """Compressed keys of the positions before it were there, and are not written again."""

    def floor(self, geometry: Geometry) -> int:
        """First position that the windows of the decoder half see while the prompt runs (5.1)."""
        kept = 0 if self.mode == "off" else self.length - geometry.keep
        return max(self.start, kept, 0)


@frozen
class Row:
    """What one row of a prompt's chunk sees and stores."""

    position: int
    encoder_window: range
    decoder_window: range | None
    """None: the decoder half does not run this row."""
    keys: Mapping[int, int]
    """Of each ratio: how many compressed keys it sees, from the first one on."""
    stores_window: bool
    stores_decoder_window: bool | None
    """None: either way, because nobody reads it."""
    stores_key: Mapping[int, bool]
    """Of each ratio: whether this row writes the key that ends with it."""


def hit_of(shared: int, length: int, mode: Mode, geometry: Geometry) -> tuple[int, int]:
    """``(start, hit)`` of a prompt whose first ``shared`` tokens were computed before (5.2).

    Whole blocks, and one token is left to run. The last window of the hit runs again, and all rows that the decoder
    half keeps. Where that leaves nothing to skip, there is no hit.
    """
    hit = min(shared, length - 1) // geometry.block * geometry.block
    kept = length - geometry.keep
    if geometry.exact is not None:
        start = hit - geometry.exact[0] if mode == "off" else min(hit, kept) - geometry.exact[1]
    else:
        start = hit - geometry.window if mode == "off" else min(hit - geometry.window, kept)
    return (start, hit) if start > 0 else (0, 0)


def rows_of(prompt: Prompt, begin: int, end: int, geometry: Geometry) -> Iterator[Row]:
    """The rows of the chunk ``[begin, end)`` (5.1 to 5.3)."""
    floor = prompt.floor(geometry)
    # A chunk in front of the kept rows leaves its last row, so that there is one.
    first_kept = min(max(prompt.length - geometry.keep, begin), end - 1) if prompt.mode == "compact" else begin
    for position in range(begin, end):
        low = position - geometry.window + 1
        in_ring = position >= end - geometry.ring
        is_live = prompt.mode == "off" or position >= prompt.length - geometry.keep
        yield Row(
            position,
            encoder_window=range(max(low, prompt.start, 0), position + 1),
            decoder_window=range(max(low, floor), position + 1) if position >= first_kept else None,
            keys={ratio: (position + 1) // ratio for ratio in geometry.ratios},
            stores_window=in_ring,
            stores_decoder_window=in_ring if is_live else (False if prompt.mode == "compact" else None),
            stores_key={
                ratio: (position + 1) % ratio == 0 and position // ratio * ratio >= prompt.hit
                for ratio in geometry.ratios
            },
        )


def decode_window(position: int, geometry: Geometry) -> range:
    """What a decode row sees, in both halves and in every mode: ``keep`` has no part in it."""
    return range(max(position - geometry.window + 1, 0), position + 1)
