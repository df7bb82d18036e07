"""Ops of a backend that do several steps of a row in one launch (``spec/kernels.md`` 2.9).

They give what the steps give one by one: the token of equal weights, bit for bit. What a request asks for beyond a
token and its log-probability needs the whole distribution, and takes the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from attrs import frozen

Best = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
Choose = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@frozen
class FusedOps:
    """``sample.best`` and ``sample.choose`` of the op table; None where the backend has them not."""

    best: Best | None = None
    choose: Choose | None = None

    @classmethod
    def of(cls, ops: Mapping[str, Any]) -> FusedOps:
        """What ``ops`` of a backend, by id, offer."""
        return cls(ops.get("sample.best"), ops.get("sample.choose"))


@frozen
class Chosen:
    """What one launch chose in some rows, in place of their distribution."""

    tokens: torch.Tensor
    """int64 ``[r]``."""
    of_tokens: torch.Tensor
    """f32 ``[r]``: their log-probabilities."""

    def logprobs(self, tokens: torch.Tensor) -> torch.Tensor:
        """Of ``tokens``, which are the chosen ones: int64 ``[r]`` -> f32 ``[r]``."""
        return self.of_tokens
