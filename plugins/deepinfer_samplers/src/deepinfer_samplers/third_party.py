"""Row sampler and logits filters of single requests (`deepinfer_core.requests.request_parts`), called on host arrays.

They are numpy code, so rows on a device are fetched, which waits for everything launched before. Requests without such
parts never come here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deepinfer_core.requests.request_parts import RequestParts
from deepinfer_samplers.draw import draw
from deepinfer_samplers.hashing import FRESH, draw_keys
from deepinfer_samplers.parameters import RowParameters

_MASS_LIMIT = 1.0 + 1e-4


def has_filter(rows: RowParameters, parts: Mapping[int, RequestParts]) -> bool:
    """Whether a request of these rows brings a filter."""
    return any(parts[i].filters for i in _requests(rows, parts))


def filter_rows(logits: torch.Tensor, rows: RowParameters, parts: Mapping[int, RequestParts]) -> None:
    """Run the filters of each request over its rows of ``logits`` f32 ``[r, V]``, in place."""
    for request in _requests(rows, parts):
        if not parts[request].filters:
            continue
        mine = np.flatnonzero(rows.request == request)
        at = torch.from_numpy(mine).to(logits.device)
        changed = parts[request].filtered(logits[at].cpu().numpy(), rows.position[mine].tolist())
        logits[at] = torch.from_numpy(changed).to(logits.device)


def sample_rows(
    logits: torch.Tensor, rows: RowParameters, parts: Mapping[int, RequestParts]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]:
    """Rows whose request brings a sampler, and the token of each, -1 where the sampler failed.

    :param logits: f32 ``[r, V]`` after steps 1 to 7.
    """
    at: list[npt.NDArray[np.intp]] = [np.zeros(0, np.intp)]
    tokens: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)]
    for request in _requests(rows, parts):
        if parts[request].sampler is None:
            continue
        mine = np.flatnonzero(rows.request == request)
        scaled = logits[torch.from_numpy(mine).to(logits.device)].cpu().numpy()
        scaled /= rows.temperature[mine][:, None]
        keys = draw_keys(rows.seed[mine], rows.position[mine], FRESH).view(np.int64)
        chosen = parts[request].sampled(scaled, [_draw_of(int(key), scaled.shape[1]) for key in keys])
        at.append(mine)
        tokens.append(np.full(len(mine), -1, np.int64) if chosen is None else np.array(chosen, np.int64))
    return np.concatenate(at), np.concatenate(tokens)


def _requests(rows: RowParameters, parts: Mapping[int, RequestParts]) -> list[int]:
    return [request for request in np.unique(rows.request).tolist() if request in parts]


def _draw_of(key: int, width: int) -> Callable[[Any], int]:
    """The canonical draw of one row, as third parties call it."""

    def canonical(probabilities: Any) -> int:
        p = np.asarray(probabilities, dtype=np.float32)
        if p.shape != (width,):
            raise ValueError(f"draw: expected probabilities of shape ({width},), got {p.shape}")
        total = float(p.sum(dtype=np.float64))
        if not (p >= 0).all() or not 0 < total <= _MASS_LIMIT:  # a NaN fails the first comparison
            raise ValueError(f"draw: expected probabilities of at least 0 that sum to 1, got a sum of {total}")
        return int(draw(torch.from_numpy(p[None].copy()), torch.tensor([key]))[0])

    return canonical
