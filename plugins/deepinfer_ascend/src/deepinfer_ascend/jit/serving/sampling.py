"""Logits of forbidden tokens, the filters of sampling, and the canonical draw."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_ascend.chip import VECTOR_CORES
from deepinfer_ascend.jit.serving.parts import Served, run

MOST_TOKENS = 1 << 18
"""Tokens of a row: nine digits of two bits."""


def mask(served: Served, logits: Tensor, bitmask: Tensor, reqs: Tensor, first_row: Tensor, step: int) -> Tensor:
    """``sample.mask`` of whole words of columns."""
    width = logits.shape[-1]
    fits = logits.dim() == 2 and logits.dtype == torch.float32 and logits.is_contiguous() and width % 32 == 0 and width
    if not fits or bitmask.dtype != torch.int32 or bitmask.shape != (len(reqs), width // 32) or not len(reqs):
        return served.op(logits, bitmask, reqs, first_row, step)  # type: ignore[no-any-return]
    begin = first_row[reqs.long()] + step
    places = torch.where(begin < first_row[reqs.long() + 1], begin, -1).int()
    given = {"bitmask": bitmask.contiguous(), "places": places, "rows": len(logits), "count": len(reqs)}
    run("mask_rows", VECTOR_CORES, {"width": width}, logits=logits, **given)
    return logits


def _takes(x: Tensor) -> bool:
    return x.dim() == 2 and x.dtype == torch.float32 and 0 < x.shape[1] <= MOST_TOKENS


def logprobs(served: Served, logits: Tensor, params: Any) -> Tensor:
    """``sample.logprobs``."""
    rows = len(logits)
    columns = [params.temperature, params.top_p, params.top_k]
    if not _takes(logits) or any(column.shape != (rows,) for column in columns):
        return served.op(logits, params)  # type: ignore[no-any-return]
    out = torch.empty(logits.shape)
    none = torch.zeros(rows)
    given = {
        "temperature": params.temperature.float().contiguous(),
        "min_p": none if params.min_p is None else params.min_p.float().contiguous(),
        "top_p": params.top_p.float().contiguous(),
        "top_k": params.top_k.int().contiguous(),
    }
    run("logprob_rows", rows, {"width": logits.shape[1]}, logits=logits.contiguous(), out=out, rows=rows, **given)
    return out


def draw(served: Served, logprobs: Tensor, seeds: Tensor, positions: Tensor, *, case: int = 0) -> Tensor:
    """``sample.draw``."""
    rows = len(logprobs)
    if not _takes(logprobs) or seeds.numel() != rows or positions.numel() != rows:
        return served.op(logprobs, seeds, positions, case=case)  # type: ignore[no-any-return]
    bits = seeds.reshape(-1).contiguous()
    tokens = torch.empty(rows, dtype=torch.int32)
    given = {
        "seeds": bits.view(torch.int64) if bits.dtype == torch.uint64 else bits.long(),
        "positions": positions.reshape(-1).long().contiguous(),
        "tokens": tokens,
    }
    run("draw_rows", rows, {"width": logprobs.shape[1]}, logprobs=logprobs.contiguous(), kind=case, rows=rows, **given)
    return tokens


SERVED = {"sample.mask": mask, "sample.logprobs": logprobs, "sample.draw": draw}
