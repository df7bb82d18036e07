"""Tokens and lengths of a decode step that only the device knows (``spec/engine.md`` 5.4, 6.4), one launch an op."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from deepinfer_cuda.fits import int32
from deepinfer_cuda.plain import plain_op
from deepinfer_cuda.tl.meta.feed import correct_rows, feed_rows
from deepinfer_cuda.unproven import serves

INTEGERS = {torch.int32: "int32", torch.int64: "int64"}
MOST_GRAMS = 8


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
    :raises ShapeContractError: as the op of ``cpu``.
    """
    n, q = fresh.shape if fresh.dim() == 2 else (0, 0)
    tokens = sampled.reshape(-1)
    grams = 0
    known = n and q and total_q and tokens.numel() and tokens.dtype in INTEGERS and int32(fresh, (n, q))
    known = known and int32(seqlens_q, (n,)) and (remap is None or int32(remap, (n,)))
    judged = accepted.reshape(-1) if accepted is not None and q > 1 else None
    if drafts is not None and (drafts.dtype not in INTEGERS or drafts.shape != (tokens.numel(), q - 1)):
        known = False
    if judged is not None and (judged.dtype not in INTEGERS or judged.numel() < tokens.numel()):
        known = False
    if ngram_win is not None and ngram_table is not None:
        width = ngram_win.shape[-1] if ngram_win.dim() else 0
        grams = max(width - (q - 1) + 1, 0)
        fits = int32(ngram_win, (n, width)) and int32(ngram_table, (ngram_table.numel(),))
        known = known and fits and 0 < grams <= MOST_GRAMS and ngram_table.numel()
    if not known or not serves("meta.feed_tokens"):
        return plain_op("meta.feed_tokens")(  # type: ignore[no-any-return]
            fresh, seqlens_q, remap, sampled, total_q, vocab_size=vocab_size, drafts=drafts, accepted=accepted,
            ngram_win=ngram_win, ngram_table=ngram_table, ngram_pad=ngram_pad,
        )  # fmt: skip
    drafted = None if drafts is None or q == 1 else drafts.contiguous()
    ids = fresh.new_empty(total_q)
    ngrams = fresh.new_empty(total_q, grams) if grams else None
    launch = feed_rows(
        q=q,
        grams=grams,
        mapped=remap is not None,
        drafted=drafted is not None,
        judged=judged is not None and grams > 0,
        even=total_q == n * q,
        sampled_type=INTEGERS[tokens.dtype],
        drafts_type="int32" if drafted is None else INTEGERS[drafted.dtype],
        accepted_type="int32" if judged is None else INTEGERS[judged.dtype],
    )
    none = seqlens_q
    launch(
        fresh,
        seqlens_q,
        none if remap is None else remap,
        tokens.contiguous(),
        fresh.view(-1)[: max(q - 1, 1)].view(1, max(q - 1, 1)) if drafted is None else drafted,
        none if judged is None else judged.contiguous(),
        ngram_win if ngrams is not None else none.view(-1, 1),
        ngram_table if ngrams is not None else none,
        vocab_size,
        ngram_pad,
        ids,
        none.view(-1, 1) if ngrams is None else ngrams,
    )
    return {"input_ids": ids} if ngrams is None else {"input_ids": ids, "ngram_token_ids": ngrams}


def correct_lengths(
    start: Tensor, seqlens_q: Tensor, remap: Tensor | None, accepted: Tensor, *, num_draft: int
) -> Tensor:
    """End position of each request, int32 ``[N]``, where the host knows an upper bound only (``spec/engine.md`` 5.4).

    :param start: int32 ``[N]``: first position, as if the step in flight accepted all its ``num_draft`` drafts.
    :param seqlens_q: int32 ``[N]``, rows of this step.
    :param remap: as in :func:`feed_tokens`; a request that continues no row keeps its start.
    :param accepted: int32 ``[M]``, drafts that the step in flight accepted; values out of range are clamped.
    :raises ShapeContractError: as the op of ``cpu``.
    """
    n = start.shape[0] if start.dim() == 1 else 0
    known = n and int32(start, (n,)) and int32(seqlens_q, (n,)) and (remap is None or int32(remap, (n,)))
    known = known and serves("meta.correct_lengths")
    if not known or not accepted.numel() or accepted.dtype not in INTEGERS:
        return plain_op("meta.correct_lengths")(start, seqlens_q, remap, accepted, num_draft=num_draft)  # type: ignore[no-any-return]
    out = torch.empty_like(start)
    launch = correct_rows(mapped=remap is not None, accepted_type=INTEGERS[accepted.dtype])
    launch(start, seqlens_q, start if remap is None else remap, accepted.reshape(-1).contiguous(), num_draft, out)
    return out


OPS = {"meta.feed_tokens": feed_tokens, "meta.correct_lengths": correct_lengths}
