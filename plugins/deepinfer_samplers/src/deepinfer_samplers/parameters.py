"""What a step asks of the sampler, one entry a row or a request, on the host (`reading` makes it from a record).

The parameters are a few numbers a request and decide which work runs at all, so they are wanted on the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import astuple, field, frozen

from deepinfer_core.requests.request_parts import RequestParts


@frozen
class RowParameters:
    """One entry a row, request after request; a request's rows are those of its next tokens, in order."""

    request: npt.NDArray[np.intp]
    """Which request of the step."""
    offset: npt.NDArray[np.intp]
    """0 for the first row of a request; each row of drafts before it adds one."""
    temperature: npt.NDArray[np.float32]
    top_p: npt.NDArray[np.float32]
    min_p: npt.NDArray[np.float32]
    top_k: npt.NDArray[np.int32]
    seed: npt.NDArray[np.uint64]
    position: npt.NDArray[np.int32]
    """Absolute index of the token that the row gives."""
    forced: npt.NDArray[np.int32] | None
    """Token that replaces the drawn one, -1 for none; None if no row has one."""

    def __len__(self) -> int:
        return len(self.request)

    def pick(self, rows: slice | npt.NDArray[np.intp]) -> RowParameters:
        """The parameters of some of the rows."""
        columns: Any = (None if column is None else column[rows] for column in astuple(self, recurse=False))
        return RowParameters(*columns)


@frozen
class Edits:
    """Single logits that change: ``tokens[i]`` of row ``rows[i]``, ordered by row."""

    rows: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32] | None = None
    """What is added to each; None where they are masked."""

    def within(self, part: slice) -> Edits | None:
        """Those of the rows in ``part``, counted from its start; None if there are none."""
        start, stop = np.searchsorted(self.rows, (part.start, part.stop))
        if start == stop:
            return None
        values = None if self.values is None else self.values[start:stop]
        return Edits(self.rows[start:stop] - part.start, self.tokens[start:stop], values)


@frozen
class GrammarMasks:
    """Tokens that a grammar allows, for the rows that have one."""

    rows: npt.NDArray[np.int64]
    """``[m]``, rising."""
    words: npt.NDArray[np.int32]
    """``[m, W]``: bit ``v % 32`` of word ``v // 32`` is 1 where token ``v`` is allowed. Exactly as wide as the
    vocabulary needs."""

    def within(self, part: slice) -> GrammarMasks | None:
        """Those of the rows in ``part``, counted from its start; None if there are none."""
        start, stop = np.searchsorted(self.rows, (part.start, part.stop))
        return GrammarMasks(self.rows[start:stop] - part.start, self.words[start:stop]) if stop > start else None


@frozen
class PenaltyParameters:
    """Of all requests of a step, ``[N]`` each; a step in which nobody asks for a penalty has none."""

    slot: npt.NDArray[np.int32]
    """The stable row of the request, which its counts belong to."""
    repetition: npt.NDArray[np.float32]
    presence: npt.NDArray[np.float32]
    frequency: npt.NDArray[np.float32]
    histories: dict[int, tuple[npt.NDArray[np.int32], int]]
    """Request -> its tokens so far, prompt first, and how many of the last are output: where counting starts again."""

    def asked(self) -> npt.NDArray[np.bool_]:
        """Which requests use a penalty."""
        return np.asarray((self.repetition != 1.0) | (self.presence != 0.0) | (self.frequency != 0.0))


@frozen
class StepParameters:
    """All of a step. Rows are counted request after request, wherever they lie among the logits."""

    rows: RowParameters
    first: npt.NDArray[np.intp]
    """``[N + 1]``: request i has the rows ``[first[i], first[i + 1])``."""
    source: npt.NDArray[np.int64] | None
    """Row of the logits of each row; None if it is the same one."""
    suppressed: Edits | None = None
    """Tokens that may not be chosen now."""
    bias: Edits | None = None
    penalties: PenaltyParameters | None = None
    slots: npt.NDArray[np.int32] | None = None
    """``[N]``, the stable row of each request."""
    grammar: GrammarMasks | None = None
    top: npt.NDArray[np.int32] | None = None
    """``[N]``, alternatives that each request wants; None if none wants any."""
    width: int = 0
    """Columns of the lists of alternatives."""
    parts: Mapping[int, RequestParts] = field(factory=dict)
    """Request -> the row sampler and the filters that it names."""
    raw: npt.NDArray[np.bool_] | None = None
    """``[N]``: log-probabilities of the model's own distribution; None if no request wants them."""

    def __len__(self) -> int:
        return len(self.first) - 1
