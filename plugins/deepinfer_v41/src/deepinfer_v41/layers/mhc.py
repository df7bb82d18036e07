"""Hyper-connections, single pass: residual streams around a sublayer (``spec/model.md`` 2.4)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from deepinfer_core.interfaces import Backend
from deepinfer_v41.config import V41Config
from deepinfer_v41.prepare import WeightStore


class HyperConnection:
    """Mixes ``C`` streams into a sublayer's input and its output back into the streams.

    The input mix is the one that the sublayer before computed; the mix that this one computes is passed on.
    """

    def __init__(self, prefix: str, config: V41Config, weights: WeightStore, backend: Backend) -> None:
        self._pre = backend.mhc.pre  # type: ignore[attr-defined]
        self._post = backend.mhc.post  # type: ignore[attr-defined]
        self._params = backend.mhc.prepare(  # type: ignore[attr-defined]
            weights.f32(f"{prefix}_fn"),
            weights.f32(f"{prefix}_scale"),
            weights.f32(f"{prefix}_base"),
            iters=config.hc_sinkhorn_iters,
            eps=config.hc_eps,
            norm_eps=config.rms_norm_eps,
        )

    def __call__(self, stream: Tensor, mix: Tensor, sublayer: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """``stream [T, C, D]``, ``mix`` f32 ``[T, C]`` -> the same for the next sublayer."""
        x, next_mix, post, comb = self.split(stream, mix)
        return self.join(sublayer(x), stream, post, comb), next_mix

    def split(self, stream: Tensor, mix: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The sublayer's input ``[T, D]``, the mix for the next sublayer, and what :meth:`join` takes."""
        x, next_mix, post, comb = self._pre(stream, mix, self._params)
        return x, next_mix, post, comb

    def join(self, out: Tensor, stream: Tensor, post: Tensor, comb: Tensor) -> Tensor:
        """``out [T, D]`` of the sublayer back into the streams."""
        joined: Tensor = self._post(out, stream, post, comb)
        return joined
