"""Where the masks of a step are written (``spec/sampling.md`` 3.4): one array for each row of a request.

Two sets in turn: a device may still copy the masks of one step while those of the next are written, and the step before
that is committed by then.
"""

from __future__ import annotations

from typing import Any

import numpy as np

SETS = 2


class MaskBuffers:
    """``grammar_mask[j]`` int32 ``[max_num_seqs, ceil(vocab_size / 32)]`` for the rows j of a request.

    :param vocab_size: Width of the logits.
    :param allowed_vocab: Ids from here on have no text, or no row of the head, and are never allowed.
    """

    def __init__(self, rows_each: int, max_num_seqs: int, vocab_size: int, allowed_vocab: int) -> None:
        words = -(-vocab_size // 32)
        # Memory that nobody writes to is not there: whole sets cost what the largest step used.
        self._sets: list[list[Any]] = [
            [np.empty((max_num_seqs, words), dtype=np.int32) for _ in range(rows_each)] for _ in range(SETS)
        ]
        self._turn = 0
        self._used: list[list[int]] = [[] for _ in range(rows_each)]
        self._last_word = min(allowed_vocab, vocab_size) // 32
        self._last_bits = np.int32((1 << min(allowed_vocab, vocab_size) % 32) - 1)

    def begin(self) -> None:
        """A new step."""
        self._turn = (self._turn + 1) % SETS
        for used in self._used:
            used.clear()

    def row(self, j: int, request: int) -> Any:
        """The words of row ``j`` of a request of the step; requests come in order."""
        self._used[j].append(request)
        return self._sets[self._turn][j][request]

    def trim(self, mask: Any) -> bool:
        """Clear what lies beyond the vocabulary. False if nothing is left."""
        if self._last_word < len(mask):
            mask[self._last_word] &= self._last_bits
            mask[self._last_word + 1 :] = 0
        return bool(np.count_nonzero(mask))  # in half the time of any()

    def drop(self, request: int) -> None:
        """Give the rows of the last request back: it has no mask after all."""
        for used in self._used:
            if used and used[-1] == request:
                used.pop()

    @property
    def count(self) -> int:
        """Masks of the step so far."""
        return sum(map(len, self._used))

    def arrays(self, n: int) -> tuple[list[Any], list[Any]] | None:
        """``(grammar_mask, grammar_rows)`` of a step of ``n`` requests; None where nothing is masked."""
        if not any(self._used):
            return None
        masks = [array[:n] if used else None for array, used in zip(self._sets[self._turn], self._used, strict=True)]
        return masks, [np.array(used, dtype=np.int32) if used else None for used in self._used]
