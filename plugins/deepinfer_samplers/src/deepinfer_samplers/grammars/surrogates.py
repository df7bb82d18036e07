"""Keeps halves of surrogate pairs out of answers: the compiler counts them as characters, UTF-8 does not.

Encoded, they are the bytes ``ED A0..BF xx``. A token that holds them counts as one without text; between two tokens the
second is barred where the first ended in ``ED``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

LEAD = 0xED
CONTINUED = range(0xA0, 0xC0)


class SurrogateGuard:
    """What a vocabulary has to do with surrogates.

    ``words`` is the vocabulary without the tokens that hold one, ``opening`` the tokens after which ``barred`` are not
    allowed, ``kept`` the mask of all but those, int32 ``[ceil(V / 32)]``.
    """

    def __init__(self, words: Sequence[bytes]) -> None:
        self.words = [b"" if _holds_one(word) else word for word in words]
        self.opening = frozenset(i for i, word in enumerate(self.words) if word[-1:] == bytes([LEAD]))
        self.barred = frozenset(i for i, word in enumerate(self.words) if word and word[0] in CONTINUED)
        bits = np.ones((len(words) + 31) // 32 * 32, np.uint8)
        bits[list(self.barred)] = 0
        self.kept: NDArray[np.int32] = np.packbits(bits, bitorder="little").view(np.int32)


def _holds_one(word: bytes) -> bool:
    return any(a == LEAD and b in CONTINUED for a, b in pairwise(word))
