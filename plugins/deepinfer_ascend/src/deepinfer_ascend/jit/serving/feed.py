"""Tokens and lengths of a step that continues one whose results only the device knows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_ascend.jit.serving.indices import empty
from deepinfer_ascend.jit.serving.parts import Served, is_int32, run

THREADS = 128
"""Rows of a core at a time, where a thread takes one."""
SPARE = ("guesses", "accepted", "win", "table", "known", "pad", "ngrams")
"""What a step without drafts, or without n-grams, has no use for."""
MOST_DRAFTS = 8192
"""Confidences that a core holds (``tl/feed.py``)."""


def _of_each(remap: Tensor | None, n: int) -> Tensor:
    """The row of the step before, of each request."""
    return torch.arange(n, dtype=torch.int32) if remap is None else remap.contiguous()


def feed_tokens(
    served: Served,
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
) -> Any:
    """``meta.feed_tokens``, where the step before sampled something."""
    shaped = is_int32(fresh, dim=2) and fresh.numel() > 0
    n, columns = fresh.shape if shaped else (0, 0)
    grams = 0
    fits = shaped and is_int32(seqlens_q) and len(seqlens_q) == n and sampled.numel() > 0 and total_q > 0
    fits = fits and (remap is None or (is_int32(remap) and len(remap) == n))
    fits = fits and (drafts is None or (drafts.dim() == 2 and drafts.shape[1] == columns - 1))
    if ngram_win is not None and ngram_table is not None:
        grams = ngram_win.shape[1] - columns + 2 if ngram_win.dim() == 2 else 0
        fits = fits and is_int32(ngram_win, dim=2) and len(ngram_win) == n and grams > 0
        fits = fits and is_int32(ngram_table) and len(ngram_table) > 0
    results = [x for x in (sampled, drafts, accepted) if x is not None]
    if not fits or len({len(x.reshape(len(x), -1)) for x in results}) > 1:
        return served.op(
            fresh, seqlens_q, remap, sampled, total_q, vocab_size=vocab_size, drafts=drafts, accepted=accepted,
            ngram_win=ngram_win, ngram_table=ngram_table, ngram_pad=ngram_pad,
        )  # fmt: skip
    m, guesses = len(sampled), drafts
    if guesses is None or not guesses.numel():
        guesses = torch.full((m, max(columns - 1, 1)), vocab_size - 1, dtype=torch.int32)
    made = {"ids": empty(total_q), "ngrams": empty(total_q, max(grams, 1))}
    history, table = (ngram_win, ngram_table) if grams else (None, None)
    given = {
        "fresh": fresh.contiguous(), "seqlens_q": seqlens_q.contiguous(), "remap": _of_each(remap, n),
        "sampled": sampled.reshape(-1).int().contiguous(), "guesses": guesses.int().contiguous(),
        "accepted": empty(m).zero_() if accepted is None else accepted.reshape(-1).int().contiguous(),
        "win": empty(n, 1) if history is None or not history.shape[1] else history.contiguous(),
        "table": empty(1) if table is None else table.contiguous(),
    }  # fmt: skip
    counts = {"n": n, "m": m, "rows": total_q, "known": len(given["table"])}
    sizes = {"drafts": columns - 1, "grams": grams}
    run(
        "feed_rows",
        -(-total_q // THREADS),
        sizes,
        spare=SPARE,
        vocabulary=vocab_size,
        pad=ngram_pad,
        **given,
        **counts,
        **made,
    )
    out = {"input_ids": made["ids"]}
    return out | {"ngram_token_ids": made["ngrams"]} if grams else out


def correct_lengths(
    served: Served, start: Tensor, seqlens_q: Tensor, remap: Tensor | None, accepted: Tensor, *, num_draft: int
) -> Tensor:
    """``meta.correct_lengths``."""
    rows = [start, seqlens_q] if remap is None else [start, seqlens_q, remap]
    n, m = len(start), accepted.numel()
    if not is_int32(*rows) or any(len(x) != n for x in rows) or not m or not n:
        return served.op(start, seqlens_q, remap, accepted, num_draft=num_draft)  # type: ignore[no-any-return]
    out = empty(n)
    given = {"start": start.contiguous(), "seqlens_q": seqlens_q.contiguous(), "remap": _of_each(remap, n)}
    results = accepted.reshape(-1).int().contiguous()
    run("corrected_ends", -(-n // THREADS), {}, accepted=results, out=out, drafts=num_draft, n=n, m=m, **given)
    return out


def verify_lengths(served: Served, confidence: Tensor, remap: Tensor | None, budget: int) -> Tensor:
    """``meta.verify_lengths``, of at most 8,192 drafts."""
    n = len(confidence) if remap is None else len(remap)
    fits = confidence.dim() == 2 and confidence.dtype == torch.float32 and confidence.numel() and n
    k = confidence.shape[1] if fits else 0
    if not fits or n * k > MOST_DRAFTS or not n <= budget <= n * (k + 1) or not (remap is None or is_int32(remap)):
        return served.op(confidence, remap, budget)  # type: ignore[no-any-return]
    out, given = empty(n), {"confidence": confidence.contiguous(), "remap": _of_each(remap, n)}
    run("verified_lengths", n, {"drafts": k}, out=out, budget=budget - n, n=n, m=len(confidence), **given)
    return out


def draft_inputs(
    served: Served, sampled: Tensor, last: Tensor, slot: Tensor, *, block: int, window: int, ring: int, noise: int,
    vocab_size: int,
) -> Any:  # fmt: skip
    """``meta.draft_inputs``."""
    n = len(last)
    if (
        not is_int32(last, slot)
        or sampled.shape != (n,)
        or len(slot) != n
        or not n
        or not 0 < block <= 128
        or window < 1
    ):
        return served.op(sampled, last, slot, block=block, window=window, ring=ring, noise=noise, vocab_size=vocab_size)
    rows = n * block
    made = {"ids": empty(rows), "positions": empty(rows), "slots": empty(rows)}
    made |= {"keys": empty(rows, window), "own": empty(rows, block)}
    given = {"sampled": sampled.int().contiguous(), "last": last.contiguous(), "slot": slot.contiguous()}
    sizes = {"block": block, "window": window}
    run("draft_rows", rows, sizes, ring=ring, noise=noise, vocabulary=vocab_size, n=n, **given, **made)
    names = {"ids": "input_ids", "positions": "positions", "slots": "slot_draft", "keys": "window_index"}
    return {name: made[key] for key, name in (names | {"own": "draft_index"}).items()}


SERVED = {
    "meta.feed_tokens": feed_tokens,
    "meta.correct_lengths": correct_lengths,
    "meta.verify_lengths": verify_lengths,
    "meta.draft_inputs": draft_inputs,
}
