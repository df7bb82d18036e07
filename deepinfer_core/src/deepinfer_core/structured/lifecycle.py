"""One answer in its grammar (``spec/sampling.md`` 3.3), over the matcher of any engine::

    dormant --trigger complete--> constrained --end token--> terminated
       |                              ^
       +--bound token--> forced ------+      the rest of the trigger, token by token

Before the trigger everything is free, an end token too: it ends the answer without a grammar. Behind an end token
nothing matters. :meth:`Lifecycle.rollback` goes back over any of it, as far as the history goes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np

from deepinfer_core.interfaces import Matcher
from deepinfer_core.structured.trigger import Trigger


class Stage(Enum):
    DORMANT = "dormant"
    FORCED = "forced"
    CONSTRAINED = "constrained"
    TERMINATED = "terminated"


class WrongAnswer(TypeError):
    """A matcher returned something else than its protocol says."""


class Lifecycle:
    """Tokens are taken with :meth:`accept` and given back with :meth:`rollback`.

    :param depth: Tokens that can be given back at once; draft length + 2.
    :param token_bytes: What each token adds to the text; one that adds nothing is no part of any grammar.
    """

    def __init__(
        self,
        matcher: Matcher,
        *,
        trigger: Sequence[int] = (),
        bound: int | None = None,
        eos_ids: frozenset[int],
        token_bytes: Sequence[bytes],
        depth: int,
    ) -> None:
        self._matcher = matcher
        self._trigger = Trigger(trigger)
        self._bound = bound
        self._eos_ids = eos_ids
        self._token_bytes = token_bytes
        self._past: deque[tuple[Stage, int]] = deque(maxlen=depth)
        """Stage and trigger progress before each of the last tokens, newest last."""
        self.stage = Stage.DORMANT if trigger else Stage.CONSTRAINED
        self._progress = 0

    @property
    def is_masked(self) -> bool:
        """Whether anything is forbidden for the next token."""
        return self.stage in (Stage.FORCED, Stage.CONSTRAINED)

    @property
    def is_sentence(self) -> bool:
        """Whether an end token has just ended a sentence of the grammar, and not an answer without one."""
        return self.stage is Stage.TERMINATED and self._past[-1][0] is Stage.CONSTRAINED

    def accept(self, token: int) -> bool:
        """Take ``token``. False, and nothing changes, if it is not allowed here.

        What the matcher raises comes out; WrongAnswer if it says neither yes nor no.
        """
        before = (self.stage, self._progress)
        if self.stage is Stage.CONSTRAINED:
            if not self._in_grammar(token):
                return False
            if _yes(self._matcher.finished(), "finished"):
                self.stage = Stage.TERMINATED
        elif self.stage is Stage.FORCED:
            if token != self._trigger.tokens[self._progress]:
                return False
            self._advance(self._progress + 1)
        elif self.stage is Stage.DORMANT:
            if token in self._eos_ids:
                self.stage = Stage.TERMINATED
            else:
                self._advance(self._trigger.step(self._progress, token))
                if token == self._bound and self.stage is Stage.DORMANT:
                    self.stage = Stage.FORCED
        self._past.append(before)
        return True

    def rollback(self, n: int) -> None:
        """Give the last ``n`` tokens back. Raises ValueError beyond the history; what the matcher raises comes out."""
        if not 0 <= n <= len(self._past):
            raise ValueError(f"cannot go back {n} of {len(self._past)} tokens")
        of_matcher = 0
        for _ in range(n):
            self.stage, self._progress = self._past.pop()
            of_matcher += self.stage is Stage.CONSTRAINED
        if of_matcher:
            self._matcher.rollback(of_matcher)

    def fill(self, mask: Any) -> None:
        """Write what is allowed next to ``mask``, int32 words: everything where nothing is forbidden."""
        if not self.is_masked:
            mask.fill(-1)
            return
        mask.fill(0)
        if self.stage is Stage.FORCED:
            allow(mask, self._trigger.tokens[self._progress])
        else:
            self._matcher.fill(mask)

    def _advance(self, progress: int) -> None:
        self._progress = progress
        if progress == len(self._trigger):
            self.stage = Stage.CONSTRAINED

    def _in_grammar(self, token: int) -> bool:
        if token not in self._eos_ids and not (token < len(self._token_bytes) and self._token_bytes[token]):
            return False  # some engines raise for a special token
        return _yes(self._matcher.accept(token), "accept")


def allow(mask: Any, token: int) -> None:
    """Set the bit of ``token`` in int32 words."""
    mask.view(np.uint32)[token >> 5] |= np.uint32(1 << (token & 31))


def forbid(mask: Any, token: int) -> None:
    """Clear the bit of ``token``."""
    mask.view(np.uint32)[token >> 5] &= np.uint32(~(1 << (token & 31)) & 0xFFFFFFFF)


def is_allowed(mask: Any, token: int) -> bool:
    return bool(int(mask[token >> 5]) >> (token & 31) & 1)


def _yes(answer: object, method: str) -> bool:
    if answer is True or answer is False:
        return answer
    raise WrongAnswer(f"Matcher.{method} returned {answer!r:.80}, expected True or False")
