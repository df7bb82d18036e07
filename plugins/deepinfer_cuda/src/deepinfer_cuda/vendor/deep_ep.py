"""DeepEP: tokens to the ranks that hold their experts, and back. Used where experts are spread over ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

ALIGN = 128
"""Rows of an expert are padded to a multiple of it, as grouped products take them."""


class RankExchange:
    """The buffer of one group of ranks.

    :param buffer: ``deep_ep.EPBuffer``.
    :param group: ``torch.distributed`` group of the ranks that share the experts.
    :param max_tokens: most tokens that a rank sends in a step.
    """

    def __init__(
        self, buffer: Callable[..., Any], group: Any, *, max_tokens: int, hidden: int, k: int, experts: int
    ) -> None:
        # deterministic, and one reduction for each token: a row must not depend on what else is sent.
        self._buffer = buffer(
            group,
            num_max_tokens_per_rank=max_tokens,
            hidden=hidden,
            num_topk=k,
            use_fp8_dispatch=False,
            deterministic=True,
            allow_multiple_reduction=False,
        )
        self._experts = experts

    def dispatch(self, x: Tensor, idx: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Any]:
        """Rows of bf16 ``[T, H]`` to their experts, int64 ``[T, k]``, -1: none. Returns what came here: rows, their
        experts and weights, and the handle that :meth:`combine` takes."""
        event = self._buffer.dispatch(
            x,
            topk_idx=idx,
            topk_weights=weight,
            num_experts=self._experts,
            expert_alignment=ALIGN,
            do_cpu_sync=False,
        )
        rows, experts, weights, handle = event.wait()
        return rows, experts, weights, handle

    def combine(self, y: Tensor, handle: Any, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        """Results back to the ranks that sent the tokens, summed for each token."""
        event = self._buffer.combine(y, handle, topk_weights=weight, bias=bias)
        result, *_ = event.wait()
        return result  # type: ignore[no-any-return]
