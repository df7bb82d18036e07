"""Find a sequence of tokens in a stream (Knuth, Morris, Pratt): overlaps restart where they should."""

from __future__ import annotations

from collections.abc import Sequence


class Trigger:
    """``progress`` is how many tokens of the sequence the stream ends with; the caller keeps it."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tuple(tokens)
        self._restart = _restarts(self.tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def step(self, progress: int, token: int) -> int:
        """The progress behind ``token``; ``progress`` is below the length."""
        while progress and self.tokens[progress] != token:
            progress = self._restart[progress - 1]
        return progress + (self.tokens[progress] == token)


def _restarts(tokens: tuple[int, ...]) -> list[int]:
    """For each prefix, the length of its longest proper beginning that is also its end."""
    restart = [0] * len(tokens)
    length = 0
    for at in range(1, len(tokens)):
        while length and tokens[at] != tokens[length]:
            length = restart[length - 1]
        length += tokens[at] == tokens[length]
        restart[at] = length
    return restart
