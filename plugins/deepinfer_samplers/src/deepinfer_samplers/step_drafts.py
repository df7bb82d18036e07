"""The drafts that a decode step verifies: where the rows of its requests lie, and which draft each row looks at.

What a row looks at is known on the host and read on the device, so all of it goes there in one copy.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from attrs import define, frozen

from deepinfer_core.errors import NotSupported
from deepinfer_samplers import shortcuts
from deepinfer_samplers.drafts import NO_DRAFT, DraftPool

Integers = npt.NDArray[np.int64]


@frozen
class StepLayout:
    """Tensors on the device of the drafts. ``N`` requests with ``R`` rows and up to ``K`` drafts each."""

    first: torch.Tensor
    """int64 ``[N]``: first row of each request."""
    at: torch.Tensor
    """int64 ``[N, K]``: the row that verifies draft j of request i; any row where it has no such draft."""
    inside: torch.Tensor
    """bool ``[N, K]``: whether it has one."""
    request: torch.Tensor
    """int64 ``[R]``: the request of each row."""
    offset: torch.Tensor
    """int64 ``[R]``: rows of the same request before it."""
    places: torch.Tensor
    """int64 ``[R]``: row of the pool; of a row that verifies nothing, any row of slot 0."""
    verifies: torch.Tensor
    """bool ``[R]``: whether the row verifies a draft."""


@define(eq=False, slots=False)
class StepDrafts:
    """The drafts of a decode step. Rows are those of the step, request after request; host values say which work there
    is."""

    pool: DraftPool
    first: npt.NDArray[np.intp]
    """``[N + 1]``, request i has the rows ``[first[i], first[i + 1])``, at least one."""
    places: Integers
    """``[R]``, as those of the layout."""
    verifies: npt.NDArray[np.bool_]
    """``[R]``, as those of the layout."""

    @cached_property
    def layout(self) -> StepLayout:
        arrays = layout_arrays(self.first, self.places, self.verifies, self.pool.num_draft)
        return StepLayout(*shortcuts.upload_all(arrays, self.pool.tokens.device))

    @cached_property
    def tokens(self) -> torch.Tensor:
        """The draft of each row, int64 ``[R]``, -1 for none."""
        return drafted(self.pool, self.layout)


def drafted(pool: DraftPool, layout: StepLayout) -> torch.Tensor:
    """The draft of each row as the pool has it now, int64 ``[R]``, -1 for none."""
    return torch.where(layout.verifies, pool.tokens[layout.places].long(), NO_DRAFT)


def layout_arrays(
    first: npt.NDArray[np.intp], places: Integers, verifies: npt.NDArray[np.bool_], num_draft: int
) -> list[npt.NDArray[Any]]:
    """The fields of a `StepLayout` on the host, in order."""
    counts, begins = np.diff(first), first[:-1]
    columns = np.arange(num_draft)
    request = np.repeat(np.arange(len(counts)), counts)
    return [
        begins.astype(np.int64),
        np.minimum(begins[:, None] + columns, max(int(first[-1]) - 1, 0)),
        columns < counts[:, None] - 1,
        request,
        np.arange(len(request)) - begins[request],
        places,
        verifies,
    ]


def no_drafts(field: str, what: str) -> NotSupported:
    return NotSupported(
        f"sampler 'canonical' cannot verify drafts: SamplerInputs.{field} is set {what}",
        reason="it was made for an engine with draft_tokens 0",
        remedy="run with draft length 0",
        details={"field": field},
    )
