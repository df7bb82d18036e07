"""What single requests bring to sampling: the row sampler and the logits filters that they name.

They are third-party code in the middle of a step. Whatever one of them raises, or returns wrongly, is kept here, and
its request gets no token: the sampler marks the row, and the engine ends the request with what was kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import define

from deepinfer_core.errors import DeepInferError, RequestFailed
from deepinfer_core.interfaces import Draw, LogitsFilter, RowSampler
from deepinfer_core.parameters.named_parts import NamedPart
from deepinfer_core.plugins.failure import blame, exception_text

MAX_MADE = 256
"""Parts that are kept for further requests. Their parameters come from requests, so there may be any number."""


@define(eq=False)
class RequestParts:
    """The parts of one request, for a sampler to call: nothing here raises."""

    filters: tuple[tuple[str, LogitsFilter], ...] = ()
    """(name, filter) in the order in which they run."""
    sampler: tuple[str, RowSampler] | None = None
    fault: DeepInferError | None = None
    """The first thing that went wrong."""

    def filtered(self, logits: Any, positions: Sequence[int]) -> Any:
        """``logits`` f32 ``[rows, V]`` after all filters; all -inf where one of them failed.

        What is -inf before stays so.
        """
        forbidden = np.isneginf(logits)
        changed = logits.copy()
        for name, part in self.filters:
            who = f"logits filter {name!r}"
            try:
                changed = np.asarray(part.apply(changed, positions), dtype=np.float32)
            except Exception as err:  # the plugin boundary; the error is kept
                return self._failed(logits, _raised(who, err))
            if changed.shape != logits.shape:
                return self._failed(logits, _wrong(who, f"shape {changed.shape}", f"{logits.shape}"))
            if np.isnan(changed).any() or np.isposinf(changed).any():
                return self._failed(logits, _wrong(who, "NaN or +inf", "logits below +inf"))
        changed[forbidden] = -np.inf
        return changed

    def sampled(self, logits: Any, draws: Sequence[Draw]) -> list[int] | None:
        """The token of each row by the row sampler; None where it failed."""
        if self.sampler is None:
            return None
        name, part = self.sampler
        who = f"sampler {name!r}"
        try:
            tokens = [int(token) for token in part.sample(logits, draws)]
        except Exception as err:  # the plugin boundary; the error is kept
            self._keep(_raised(who, err))
            return None
        if len(tokens) != len(draws):
            self._keep(_wrong(who, f"{len(tokens)} tokens", f"{len(draws)}, one for each row"))
            return None
        for row, token in enumerate(tokens):
            if not 0 <= token < logits.shape[1]:
                self._keep(_wrong(who, f"token {token}", f"ids from 0 to {logits.shape[1] - 1}"))
                return None
            if np.isneginf(logits[row, token]):
                self._keep(_wrong(who, f"token {token}, which is forbidden here", "a token whose logit is finite"))
                return None
        return tokens

    def _failed(self, logits: Any, error: DeepInferError) -> Any:
        self._keep(error)
        return np.full_like(logits, -np.inf)

    def _keep(self, error: DeepInferError) -> None:
        if self.fault is None:
            self.fault = error


NO_PARTS: Mapping[int, RequestParts] = {}


class PartsMaker:
    """Makes the parts of requests, each once for a name and its parameters.

    :param make_sampler: (name, params) -> row sampler; raises a DeepInferError for a name that nobody has.
    :param make_filter: The same for logits filters.
    """

    def __init__(
        self,
        make_sampler: Callable[[str, Mapping[str, Any]], RowSampler],
        make_filter: Callable[[str, Mapping[str, Any]], LogitsFilter],
    ) -> None:
        self._make_sampler = make_sampler
        self._make_filter = make_filter
        self._made: dict[str, Any] = {}

    def parts(self, sampler: NamedPart | None, filters: Sequence[NamedPart]) -> RequestParts | None:
        """Parts of a new request; None if it names nothing.

        :raises DeepInferError: a name that no plugin has, or what the plugin says of the parameters.
        """
        if sampler is None and not filters:
            return None
        made = tuple((part.name, self._part("logits_filter", part, self._make_filter)) for part in filters)
        chooser = None if sampler is None else (sampler.name, self._part("sampler", sampler, self._make_sampler))
        return RequestParts(made, chooser)

    def _part(self, kind: str, part: NamedPart, make: Callable[[str, Mapping[str, Any]], Any]) -> Any:
        key = part.key(kind)
        made = self._made.pop(key, None)
        if made is None:
            made = make(part.name, part.params)
        self._made[key] = made  # the last used stands last
        if len(self._made) > MAX_MADE:
            del self._made[next(iter(self._made))]
        return made


def _raised(who: str, err: Exception) -> RequestFailed:
    return RequestFailed(
        f"{who} failed",
        reason=f"{exception_text(err)} (raised at {blame(err)})",
        remedy="correct its parameters, leave it out, or report it to its authors",
        details={"part": who, "exception": type(err).__name__},
    )


def _wrong(who: str, got: str, wanted: str) -> RequestFailed:
    return RequestFailed(
        f"{who} returned {got}, expected {wanted}",
        remedy="leave it out, or report it to its authors",
        details={"part": who, "returned": got},
    )
