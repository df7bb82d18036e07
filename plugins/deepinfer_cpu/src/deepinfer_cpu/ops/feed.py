"""Tokens of a decode step that only the device knows (``spec/engine.md`` 5.4, 6.4). Nothing here reads on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from deepinfer_cpu.contracts import check_like, shape_error


def feed_tokens(
    fresh: Tensor,
    seqlens_q: Tensor,
    remap: Tensor | None,
    sampled: Tensor,
    total_q: int,
    *,
    vocab_size: int,
    drafts: Tensor | None = None,
    accepted: Tensor | None = None,
    ngram_win: Tensor | None = None,
    ngram_table: Tensor | None = None,
    ngram_pad: int = 0,
) -> Mapping[str, Tensor]:
    """Tokens of a decode step whose rows continue the step before, whose results only the device knows.

    A request with ``remap >= 0`` runs the token that row ``remap`` of the step before sampled (row 0 of the request),
    then that row's drafts; another one runs its row of ``fresh``. Nothing is read on the host. Ids out of range (the
    row of a request that failed) become ``vocab_size - 1``, so that such a row runs to its end and is discarded.

    :param fresh: int32 ``[N, Q]``: current token and drafts as the host knows them, ``Q = K + 1``.
    :param seqlens_q: int32 ``[N]``, ``total_q`` rows in all, each request at most Q.
    :param remap: int32 ``[N]``, row in the step before or -1; None: every request continues the row of its own number,
        of which there may be more.
    :param sampled: int ``[M]`` of the step before; ``drafts`` int ``[M, K]``, absent: pad drafts.
    :param accepted: int32 ``[M]``, drafts that the step before accepted; absent: none.
    :param ngram_win: int32 ``[N, K + G - 1]``: compressed ids before the current token, oldest first, then the K drafts
        of the step before; -1 ends the look-back. None: no n-grams.
    :param ngram_table: int32 ``[size]``, compressed id of each token; negative, or an id beyond it, ends the look-back.
    :returns: ``input_ids`` int32 ``[T]`` and, with a window, ``ngram_token_ids`` int32 ``[T, G]``: column r is the
        compressed id r places back, ``ngram_pad`` from the end of the look-back on.
    """
    n, q = fresh.shape
    if seqlens_q.shape[0] != n:
        raise shape_error("meta.feed_tokens", "seqlens_q", f"[{n}]", list(seqlens_q.shape))
    if remap is not None:
        check_like("meta.feed_tokens", "remap", remap, (n,))
    if drafts is not None and drafts.shape[1:] != (q - 1,):
        raise shape_error("meta.feed_tokens", "drafts", f"[M, {q - 1}]", list(drafts.shape))
    current, mapped, source = _current_tokens(fresh, remap, sampled, drafts, vocab_size)
    if total_q == n and q == 1:
        row, local = None, None
        ids = current[:, 0]
    elif total_q == n * q:
        row, local = None, None
        ids = current.reshape(-1)
    else:
        numbers = torch.arange(n, dtype=torch.int32, device=fresh.device)
        row = torch.repeat_interleave(numbers, seqlens_q, output_size=total_q).long()
        first = torch.cumsum(seqlens_q, 0) - seqlens_q
        local = torch.arange(total_q, device=fresh.device) - first[row]
        ids = current[row, local]
    out = {"input_ids": ids.contiguous()}
    if ngram_win is not None and ngram_table is not None:
        rejected = None
        if q > 1:
            rejected = torch.full((n,), q - 1, dtype=torch.long, device=fresh.device)
            if accepted is not None:
                taken = accepted.reshape(-1)[source].long().clamp(0, q - 1)
                rejected = rejected - taken if mapped is None else torch.where(mapped, rejected - taken, rejected)
        # Tokens of the step before are in the vocabulary by now; the host's are looked at.
        all_known = remap is None and ngram_table.shape[0] >= vocab_size
        grams = _ngram_windows(current, rejected, ngram_win, ngram_table, ngram_pad, all_known)
        flat = grams.reshape(n * q, -1) if row is None else grams[row, local]
        out["ngram_token_ids"] = flat.contiguous()
    return out


def correct_lengths(
    start: Tensor, seqlens_q: Tensor, remap: Tensor | None, accepted: Tensor, *, num_draft: int
) -> Tensor:
    """End position of each request, int32 ``[N]``, where the host knows an upper bound only (``spec/engine.md`` 5.4).

    :param start: int32 ``[N]``: first position, as if the step in flight accepted all its ``num_draft`` drafts.
    :param seqlens_q: int32 ``[N]``, rows of this step.
    :param remap: as in :func:`feed_tokens`; a request that continues no row keeps its start.
    :param accepted: int32 ``[M]``, drafts that the step in flight accepted; values out of range are clamped.
    """
    accepted = accepted.reshape(-1)
    if not accepted.shape[0]:
        raise shape_error("meta.correct_lengths", "accepted", "the rows of the step before", [0])
    for name, value in (("seqlens_q", seqlens_q), ("remap", remap)):
        if value is not None:
            check_like("meta.correct_lengths", name, value, start.shape)
    source, mapped = _sources(remap, start.shape[0], accepted)
    rejected = num_draft - accepted[source].clamp(0, num_draft)
    if mapped is not None:
        rejected = rejected.masked_fill(~mapped, 0)
    return (start + seqlens_q - rejected).to(torch.int32)


def _sources(remap: Tensor | None, n: int, results: Tensor) -> tuple[Any, Tensor | None]:
    """(row of ``results`` of each request, int64 ``[N]``, clamped: a sampler may have returned too few; whether the
    request continues one, bool ``[N]``). The first N rows are a slice, and None: all do."""
    if remap is None and n <= results.shape[0]:
        return slice(0, n), None
    if remap is None:
        source = torch.arange(n, device=results.device)
        mapped = torch.ones(n, dtype=torch.bool, device=results.device)
    else:
        source = remap.long()
        mapped = source >= 0
    return source.clamp(0, results.shape[0] - 1), mapped


def _current_tokens(
    fresh: Tensor, remap: Tensor | None, sampled: Tensor, drafts: Tensor | None, vocab_size: int
) -> tuple[Tensor, Tensor | None, Any]:
    """Tokens int32 ``[N, Q]``, and `_sources` in turn: whether the request continues a row, and which."""
    n, q = fresh.shape
    sampled = sampled.reshape(-1)
    if not sampled.shape[0]:
        sampled = fresh.new_full((1,), vocab_size - 1)
    source, mapped = _sources(remap, n, sampled)
    columns = [sampled[source].to(torch.int32).unsqueeze(1)]
    if q > 1:
        if drafts is None:
            columns.append(fresh.new_full((n, q - 1), vocab_size - 1))
        else:
            columns.append(drafts[source].to(torch.int32).reshape(n, q - 1))
    known = columns[0] if q == 1 else torch.cat(columns, dim=1)
    known = known.masked_fill((known < 0) | (known >= vocab_size), vocab_size - 1)
    return known if remap is None or mapped is None else torch.where(mapped.unsqueeze(1), known, fresh), mapped, source


def _ngram_windows(
    current: Tensor, rejected: Tensor | None, win: Tensor, table: Tensor, pad: int, all_known: bool
) -> Tensor:
    """Compressed ids, newest first, int32 ``[N, Q, G]`` (``spec/engine.md`` 6.4). ``rejected``: None without drafts."""
    n, q = current.shape
    g = win.shape[1] - (q - 1) + 1 if win.dim() == 2 else 0
    if g < 1 or win.shape[0] != n:
        raise shape_error("meta.feed_tokens", "ngram_win", f"[{n}, K + G - 1] with K = {q - 1}", list(win.shape))
    if all_known:
        tokens = table[current.long()]
    else:
        known = current < table.shape[0]
        tokens = table[current.long().clamp(max=table.shape[0] - 1)].masked_fill(~known, -1)
    # One line a request: G - 1 ids of history and accepted drafts, then the tokens of this step. Row j looks back in it
    # from column G - 1 + j.
    if rejected is None:
        grams = torch.cat([win, tokens], dim=1).flip(1).unsqueeze(1)
    else:
        at = torch.arange(g - 1, device=win.device) + (q - 1) - rejected.unsqueeze(1)
        line = torch.cat([win.gather(1, at), tokens], dim=1)
        back = torch.arange(q, device=win.device).unsqueeze(1) + (g - 1) - torch.arange(g, device=win.device)
        grams = line[:, back]
    dead = torch.cumsum((grams < 0).to(torch.int32), dim=2) > 0
    return grams.masked_fill(dead, pad)
