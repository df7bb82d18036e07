"""The prompts of level 2: pieces of one text, of lengths that follow from the model's sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import evolve, frozen

from deepinfer_core.errors import InvalidInputFile
from deepinfer_verify.replay.rule import MODES, Geometry, Mode
from deepinfer_verify.replay.traced import TracedEngine, Wish


@frozen
class Beginning:
    """What prompts have in common with one that ran before, and how long they are behind it."""

    geometry: Geometry
    shared: int
    """Whole blocks and a few tokens more, enough that something is skipped in every mode."""
    tails: tuple[int, ...]
    new_tokens: int

    @property
    def needed(self) -> int:
        """Tokens of the text."""
        return self.shared + max(self.tails) + self.new_tokens + len(self.tails) + 1

    @property
    def longest(self) -> int:
        """Positions of the longest sequence."""
        return self.shared + max(self.tails) + self.new_tokens

    def first(self, ids: Sequence[int]) -> Wish:
        """The prompt that fills the cache."""
        return Wish("the first prompt", tuple(ids[: self.shared + 1]), (ids[self.shared + 1],), "off")

    def tails_of(self, ids: Sequence[int], mode: Mode) -> Iterator[Wish]:
        """Each goes on in its own way, and none as the first prompt does."""
        for at, tail in enumerate(self.tails):
            begin = self.shared + 1 + at
            rest = ids[begin : begin + tail + self.new_tokens]
            name = f"{mode}, {self.shared + tail} tokens, {self.shared} of them cached"
            yield Wish(name, (*ids[: self.shared], *rest[:tail]), tuple(rest[tail:]), mode)


@frozen
class Sizes:
    """Of the model, and of the prompts that follow from them."""

    geometry: Geometry
    lengths: tuple[int, ...]
    hits: Beginning
    """With one window that runs again."""
    exact_hits: Beginning | None
    """With so much that runs again that nothing differs from a cold run; None: the model does not say how much."""
    new_tokens: int

    @property
    def needed(self) -> int:
        """Tokens of the text, exact hits apart."""
        return max(max(self.lengths) + self.new_tokens, self.hits.needed)


def sizes_of(engine: TracedEngine, new_tokens: int) -> Sizes:
    """Of an engine with a mode that keeps rows."""
    from deepinfer_core.assembly.bounded_replay import bounded_replay, exact_length

    hints, config = engine.llm.assembly.hints, engine.llm.config
    keep = bounded_replay(config, hints, config.draft_tokens).keep
    window, block = hints.window, config.block_size or hints.block_size
    geometry = Geometry(window, keep, block, hints.swa_ring, tuple(hints.ratios_sparse))
    lengths = {max(1, window // 2), keep, keep + 1, keep + window + 3, 3 * keep + 2 * window + 5}
    tails = (5, keep + 7)
    hits = Beginning(geometry, _blocks(max(window, keep), block), tails, new_tokens)
    exact = None
    if hints.window_layers:
        again = (exact_length(window, hints.window_layers), exact_length(window, hints.encoder_layers))
        longest = max(again[0], keep + again[1])
        exact = Beginning(evolve(geometry, exact=again), _blocks(longest, block), tails, new_tokens)
    return Sizes(geometry, tuple(sorted(lengths)), hits, exact, new_tokens)


def ids_of(engine: TracedEngine, text: str, sizes: Sizes) -> tuple[int, ...]:
    """Of the text. Raises InvalidInputFile for one that is too short."""
    ids = tuple(engine.llm.get_tokenizer().encode(text))
    if len(ids) < sizes.needed:
        raise InvalidInputFile(
            f"the text has {len(ids):,} tokens",
            reason=f"prompts of this model's sizes need {sizes.needed:,}",
            remedy="give a longer one with --text",
            details={"tokens": len(ids), "needed": sizes.needed},
        )
    return ids


def cold(ids: Sequence[int], sizes: Sizes) -> Iterator[Wish]:
    """Every length in every mode."""
    for length in sizes.lengths:
        for mode in MODES:
            end = length + sizes.new_tokens
            yield Wish(f"{mode}, {length} tokens", tuple(ids[:length]), tuple(ids[length:end]), mode)


def _blocks(more_than: int, block: int) -> int:
    return (more_than // block + 2) * block + 3
