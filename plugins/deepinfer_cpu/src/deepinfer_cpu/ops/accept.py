"""Verification of drafts in one op (``spec/sampling.md`` 2.7): each row's verdict, then the prefix rule of its request.

Plain torch in double precision, one row like the other: the meaning of the op for a device that fuses it. The canonical
sampler does not call it, because it verifies the distributions that it has already filtered in fixed point, with
penalties and masks that the op knows nothing of.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from deepinfer_cpu.contracts import shape_error
from deepinfer_cpu.ops import sampling
from deepinfer_cpu.scalars import is_host

KEEP = math.exp(-5e-5)
NOISE_CASE = 3


def verify(
    logits: Tensor,
    params: Any,
    draft: Any,
    *,
    mode: Literal["rejection", "coupled"],
    forced: Tensor | None = None,
    stop_ids: Tensor | None = None,
) -> dict[str, Tensor]:
    """Tokens of each request: its accepted drafts, and one more.

    :param logits: f32 ``[T, V]``, the rows of request i are ``[first_row[i], first_row[i + 1])``; all but its last one
        verify a draft.
    :param params: as of ``sample.logprobs``, for each row, with ``seeds`` (64-bit patterns) and ``positions`` ``[T]``,
        absolute index of the token of the row, and ``first_row`` int ``[N + 1]``.
    :param draft: has ``tokens`` int ``[T]``, -1 for none, and ``logprobs`` f32 ``[T, V]``, the distribution that each
        token was drawn from (rejection only; may be None otherwise). None: no row verifies.
    :param mode: how rows with a temperature decide; greedy rows accept their best token.
    :param forced: int ``[T]``: token that the row gives whatever else, -1 for none.
    :param stop_ids: int ``[N, S]``, -1 filled: tokens that end a request.
    :returns: ``sampled_ids`` i32 ``[N]``, ``sampled_logprob`` f32 ``[N]``, ``accepted`` i32 ``[N]``, ``verified_ids``
        i32 ``[T]`` (-1 from the first rejection on), ``verified_logprob`` f32 ``[T]``, ``accept_prob`` f32 ``[T]`` (1
        for rows that verify nothing) and ``stopped`` bool ``[N]``.
    """
    rows, first = logits.shape[0], params.first_row.long()
    if first.dim() != 1 or (is_host(first) and (int(first[-1]) != rows or bool((first.diff() < 1).any()))):
        raise shape_error("sample.verify", "first_row", f"rising, from 0 to {rows}", list(first.shape))
    if mode not in ("rejection", "coupled"):
        raise shape_error("sample.verify", "mode", "'rejection' or 'coupled'", mode)
    if draft is not None and draft.tokens.shape != (rows,):
        raise shape_error("sample.verify", "draft.tokens", [rows], list(draft.tokens.shape))
    if mode == "rejection" and draft is not None and draft.logprobs.shape != logits.shape:
        raise shape_error("sample.verify", "draft.logprobs", list(logits.shape), list(draft.logprobs.shape))
    logq = sampling.logprobs(logits, params)
    last = torch.zeros(rows, dtype=torch.bool, device=logits.device)
    last.index_fill_(0, first[1:] - 1, True)
    wanted = (
        torch.full((rows,), -1, device=logits.device) if draft is None else draft.tokens.long().masked_fill(last, -1)
    )
    tokens, accept, chance = (
        _rejected(logq, params, draft, wanted, last) if mode == "rejection" else _coupled(logq, params, wanted)
    )
    greedy = params.temperature < sampling.GREEDY_BELOW
    tokens = torch.where(greedy, logq.argmax(1), tokens)
    accept = torch.where(greedy, tokens == wanted, accept)
    if forced is not None:
        tokens = torch.where(forced >= 0, forced.long(), tokens)
        accept = torch.where(forced >= 0, forced == wanted, accept)
    if mode == "coupled" or draft is None:
        chance = accept.float()
    chance = torch.where(greedy, accept.float(), chance).masked_fill(last, 1.0)
    return _settled(logq, tokens, accept & ~last, chance, first, stop_ids)


def _rejected(logq: Tensor, params: Any, draft: Any, wanted: Tensor, last: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens int64, verdicts and chances ``[T]`` of rejection sampling."""
    q = logq.exp()
    fresh = sampling.draw(logq, params.seeds, params.positions)
    if draft is None:
        return fresh.long(), torch.zeros_like(last), torch.ones(len(last), device=last.device)
    p = draft.logprobs.exp().masked_fill((wanted < 0).unsqueeze(1), 0.0)
    rest = (q - p * KEEP).clamp(min=0)
    left = rest.double().sum(1)
    empty = left == 0
    shares = torch.where(empty.unsqueeze(1), q, rest / left.masked_fill(empty, 1.0).float().unsqueeze(1))
    replaced = sampling.draw(shares.log(), params.seeds, params.positions, case=1)
    column = wanted.clamp(min=0).unsqueeze(1)
    ratio = (logq.gather(1, column).double() - draft.logprobs.gather(1, column).double()).clamp(max=0).exp()
    accept = (_accept_noise(params) < ratio.squeeze(1)) & (wanted >= 0)
    tokens = torch.where(last, fresh, replaced).long()
    return torch.where(accept, wanted, tokens), accept, (1 - left).clamp(min=0).float()


def _coupled(logq: Tensor, params: Any, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens int64 and verdicts ``[T]`` of the Gumbel coupling; the chances are not known beforehand."""
    seeds, positions = _noise_inputs(params)
    keys = sampling.key(seeds, positions, NOISE_CASE).unsqueeze(1)
    hashes = sampling.mix(keys + torch.arange(logq.shape[1], device=keys.device) * sampling.GOLDEN)
    uniform = sampling.shifted(hashes, 40).double().add_(0.5).mul_(2.0**-24)
    tokens = (logq.double() - uniform.log_().neg_().log_()).argmax(1)
    return tokens, tokens == wanted, torch.ones(len(tokens), device=tokens.device)


def _settled(
    logq: Tensor, tokens: Tensor, accept: Tensor, chance: Tensor, first: Tensor, stop_ids: Tensor | None
) -> dict[str, Tensor]:
    """The prefix rule: what a request gives ends with its first row that is not accepted."""
    n, rows, device = len(first) - 1, len(tokens), tokens.device
    logprobs = logq.gather(1, tokens.unsqueeze(1)).squeeze(1)
    request = torch.repeat_interleave(torch.arange(n, device=device), first.diff(), output_size=rows)
    row = torch.arange(rows, device=device)
    ends = torch.where(accept, rows, row)  # the last row of a request is never accepted
    final = torch.full((n,), rows, device=device).scatter_reduce_(0, request, ends, "amin")
    counted = row < final[request]
    stopped = torch.zeros(n, dtype=torch.bool, device=device)
    if stop_ids is not None:
        ids = stop_ids.long()[request]
        hit = ((tokens.unsqueeze(1) == ids) & (ids >= 0)).any(1) & (row <= final[request])
        stopped = torch.zeros(n, dtype=torch.int32, device=device).index_add_(0, request, hit.to(torch.int32)) > 0
    return {
        "sampled_ids": tokens[final].to(torch.int32),
        "sampled_logprob": logprobs[final],
        "accepted": (final - first[:-1]).to(torch.int32),
        "verified_ids": tokens.masked_fill(~counted, -1).to(torch.int32),
        "verified_logprob": logprobs.masked_fill(~counted, 0.0),
        "accept_prob": chance,
        "stopped": stopped,
    }


def _noise_inputs(params: Any) -> tuple[Tensor, Tensor]:
    return sampling.bits_of(params.seeds), params.positions.reshape(-1).long()


def _accept_noise(params: Any) -> Tensor:
    """Uniform numbers in [0, 1), f64 ``[T]``, that decide about drafts."""
    seeds, positions = _noise_inputs(params)
    hashes = sampling.mix(seeds ^ ((3 * positions + 2) * sampling.GOLDEN))
    return sampling.shifted(hashes, 11).double().mul_(2.0**-53)
