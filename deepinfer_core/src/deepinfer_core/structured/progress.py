"""A request that runs, in its grammar: the tokens that it took, the drafts that it tries, whether it is complete."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from deepinfer_core.structured.failures import Failure, dead_end, forced_elsewhere, matcher_failed, token_rejected
from deepinfer_core.structured.lifecycle import Lifecycle, Stage, forbid, is_allowed
from deepinfer_core.structured.masks import MaskBuffers


class Progress:
    """Only tokens that the core has appended move the grammar on (``advance``); drafts are tried and given back.

    :param owner: The grammar engine's plugin, for the text of a failure.
    :param forced: The tokens that the request prescribes from its first one on; -1 where it does not.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        request_id: str,
        eos_ids: frozenset[int],
        owner: str,
        forced: Sequence[int] = (),
    ) -> None:
        self._lifecycle = lifecycle
        self._request_id = request_id
        self._eos_ids = eos_ids
        self._owner = owner
        self._forced = forced
        self._taken = 0
        self.drafts: Sequence[int] = ()
        """What the next step of the request verifies, if it verifies anything."""

    @property
    def stage(self) -> Stage:
        return self._lifecycle.stage

    def advance(self, tokens: Sequence[int]) -> Failure | None:
        """Take those of ``tokens``, the whole answer so far, that are new."""
        while self._taken < len(tokens):
            token = tokens[self._taken]
            before = tokens[: self._taken]
            try:
                good = self._lifecycle.accept(token)
            except Exception as err:  # the plugin boundary: only this request ends
                return matcher_failed(self._request_id, "matcher.accept", err, before, self._owner)
            if not good and self._taken < len(self._forced) and self._forced[self._taken] == token:
                return forced_elsewhere(self._request_id, token, self._taken + 1, before, self._owner)
            if not good:
                return token_rejected(self._request_id, token, self._taken + 1, before, self._owner)
            self._taken += 1
        return None

    def fill(
        self,
        masks: MaskBuffers,
        index: int,
        rows: int,
        tokens: Sequence[int],
        excluded: Callable[[int], Collection[int]],
    ) -> tuple[Failure | None, list[int]]:
        """Write the masks of a step's ``rows``: row 0 behind the committed tokens, each further one behind a draft.

        :param index: The request's place in the step.
        :param excluded: Row -> tokens that the step excludes there, since the answer is too short for an end.
        :returns: Why the request cannot go on, and the rows in which what is excluded is all that the grammar allows.
        """
        lifecycle, tried, overruled = self._lifecycle, 0, []
        op = "matcher.fill"
        try:
            for j in range(rows):
                if lifecycle.is_masked:
                    op = "matcher.fill"
                    mask = masks.row(j, index)
                    lifecycle.fill(mask)
                    if not masks.trim(mask):
                        if j == 0:
                            return dead_end(self._request_id, tokens, self._owner), []
                    elif _only_excluded(mask, excluded(j)):
                        overruled.append(j)
                if j == rows - 1 or j >= len(self.drafts):
                    break
                op = "matcher.accept"
                if not lifecycle.accept(self.drafts[j]):
                    break
                tried += 1
            op = "matcher.rollback"
            lifecycle.rollback(tried)
        except Exception as err:  # the plugin boundary: only this request ends
            return matcher_failed(self._request_id, op, err, tokens, self._owner), []
        return None, overruled

    def dead_end(self, tokens: Sequence[int]) -> Failure | None:
        """The failure of a row without an allowed token, where the mask had a part in it.

        :param tokens: The answer, with the drafts that were accepted before the row.
        """
        failure = self.advance(tokens)
        if failure is not None:
            return failure
        return dead_end(self._request_id, tokens, self._owner) if self._lifecycle.is_masked else None

    def is_complete(self, tokens: Sequence[int], words: int) -> bool:
        """Whether ``tokens``, the whole answer of a request that has ended, are a sentence of the grammar.

        :param words: Of a mask.
        """
        lifecycle = self._lifecycle
        try:
            for token in tokens[self._taken :]:
                if not lifecycle.accept(token):
                    break  # a stop token that is no part of the grammar
            if lifecycle.stage is Stage.TERMINATED:
                return lifecycle.is_sentence
            if lifecycle.stage is not Stage.CONSTRAINED:
                return False
            mask = np.empty(words, dtype=np.int32)
            lifecycle.fill(mask)
            return any(is_allowed(mask, token) for token in self._eos_ids if token < 32 * words)
        except Exception:  # a matcher that fails now can change nothing but this flag
            return False


def _only_excluded(mask: Any, excluded: Collection[int]) -> bool:
    """Whether ``mask`` allows nothing but what the step excludes."""
    if not excluded:
        return False
    left = mask.copy()
    for token in excluded:
        if token < 32 * len(left):
            forbid(left, token)
    return not left.any()
