"""Indexer: scores of compressed keys, selection, candidates (``spec/model.md`` 2.7, ``spec/kernels.md`` 2.4)."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from deepinfer_cpu.caches import CacheView
from deepinfer_cpu.contracts import check_like, shape_error
from deepinfer_cpu.ops import cache
from deepinfer_cpu.scalars import is_host
from deepinfer_cpu.tensors import Quantised

KEY_TILE = 32
SCORE_VALUES, SCORE_VALUES_DEVICE = 1 << 22, 1 << 26
"""Scores per head, or values of gathered keys, held at once; more rows are done in turns."""


def _values(x: Tensor | Quantised) -> Tensor:
    return x.float() if isinstance(x, Tensor) else x.values  # type: ignore[no-any-return]  # fp32 in any backend


def logits(
    q: Tensor | Quantised,
    weights: Tensor,
    keys: Tensor | Quantised | CacheView,
    *,
    span: tuple[Tensor, Tensor] | None = None,
    context_lens: Tensor | None = None,
    block_table: Tensor | None = None,
    max_k: int | None = None,
    candidates: Tensor | None = None,
    block: int = 8,
    out: Tensor | None = None,
) -> Tensor:
    """``sum_h relu(q_h . key) * weights_h`` in fp32, ``[T, max_k]``; column c is the c-th visible key, the rest -inf.

    Prefill: ``keys`` are gathered rows ``[S, d]`` and ``span`` = (ks, ke) int32 ``[T]`` names each row's keys. Decode:
    ``keys`` is a CacheView, ``context_lens`` int32 ``[T]`` counts visible entries, ``block_table`` int32 ``[T, MB]``.

    :param q: ``[T, heads, d]``; ``weights`` ``[T, heads]`` with all factors in it.
    :param max_k: columns, where a bound of the longest row will do; None means the longest row, which only the device
        may know: then the op waits for it.
    :param candidates: int32 ``[T, nb]`` of ``block``-sized blocks, -1 none: other columns become -inf.
    """
    query, w = _values(q), weights.float()
    if query.dim() != 3 or w.shape != query.shape[:2]:
        raise shape_error("index.logits", "weights", f"{list(query.shape[:2])}", list(w.shape))
    rows, width = query.shape[0], query.shape[2]
    key_width = keys.width if isinstance(keys, CacheView) else keys.shape[-1]
    if key_width != width:
        raise shape_error("index.logits", "keys", f"of {width} values", key_width)
    if candidates is not None and (candidates.dim() != 2 or candidates.shape[0] != rows):
        raise shape_error("index.logits", "candidates", f"[{rows}, nb]", list(candidates.shape))
    if isinstance(keys, CacheView):
        if context_lens is None or block_table is None:
            raise shape_error("index.logits", "context_lens, block_table", "given with a cache view", None)
        check_like("index.logits", "context_lens", context_lens, (rows,))
        if block_table.dim() != 2 or block_table.shape[0] != rows:
            raise shape_error("index.logits", "block_table", f"[{rows}, MB]", list(block_table.shape))
        scores = _paged(query, w, keys, context_lens, block_table, max_k)
    else:
        if span is None:
            raise shape_error("index.logits", "span", "given with gathered keys", None)
        for bound in span:
            check_like("index.logits", "span", bound, (rows,))
        scores = _spans(query, w, _values(keys), span[0], span[1], max_k)
    if candidates is not None:
        scores.masked_fill_(~candidate_mask(candidates, scores.shape[1], block), -math.inf)
    return scores if out is None else out.copy_(scores)


def _longest(lengths: Tensor) -> int:
    return int(lengths.max()) if lengths.numel() else 0


def _spans(query: Tensor, w: Tensor, keys: Tensor, ks: Tensor, ke: Tensor, max_k: int | None) -> Tensor:
    lengths = ke - ks
    width = max(0, _longest(lengths)) if max_k is None else max_k
    scores = torch.full((query.shape[0], width), -math.inf, device=query.device)
    columns = torch.arange(width, device=query.device)
    if not is_host(ks):
        _score_all(scores, query, w, keys, ks.unsqueeze(1) + columns)
        return scores.masked_fill_(columns >= lengths.unsqueeze(1), -math.inf)
    # Rows with a common first key form one product; in a prefill batch these are the rows of a sequence.
    cuts = [0, *(ks.diff().nonzero().squeeze(1) + 1).tolist(), ks.shape[0]] if ks.numel() else []
    for begin, end in pairwise(cuts):
        longest = min(width, _longest(lengths[begin:end]))
        if longest <= 0:
            continue
        tiled = _tiled(longest)
        own = keys[int(ks[begin]) : int(ks[begin]) + tiled]
        if own.shape[0] < tiled:
            own = torch.cat([own, own.new_zeros(tiled - own.shape[0], own.shape[1])])
        own = own.t().contiguous()
        step = max(1, SCORE_VALUES // (query.shape[1] * tiled))
        for at in range(begin, end, step):
            rows = slice(at, min(at + step, end))
            scores[rows, :longest] = _score(query[rows], w[rows], own)[:, :longest]
    return scores.masked_fill_(columns >= lengths.unsqueeze(1), -math.inf)


def _score_all(scores: Tensor, query: Tensor, w: Tensor, keys: Tensor, at: Tensor) -> None:
    """Scores of the keys number ``at`` int ``[T, n]`` into ``scores`` ``[T, n]``: every row against every key, because
    the host does not know which rows share theirs."""
    count = keys.shape[0]
    if not count or not at.numel():
        return
    own = keys.t().contiguous()
    step = max(1, SCORE_VALUES_DEVICE // (query.shape[1] * count))
    for begin in range(0, query.shape[0], step):
        rows = slice(begin, begin + step)
        chosen = at[rows].long().clamp_(0, count - 1)
        scores[rows] = _score(query[rows], w[rows], own).gather(1, chosen)


def _tiled(keys: int) -> int:
    """Keys of a product: whole tiles, because the library sums short ones in another order, and how many keys a row is
    scored beside depends on the rest of the batch."""
    return -(-keys // KEY_TILE) * KEY_TILE


def _score(query: Tensor, w: Tensor, keys: Tensor) -> Tensor:
    """``[T, h, d]`` x ``[d, S]`` (or ``[T, d, S]``), contiguous -> ``[T, S]``.

    A score has the same bits in prefill and in decode: keys lie in one order, heads are added one by one (a product
    over so few heads would be summed differently for few and for many keys), and a single head is computed as two.
    """
    heads = query.shape[1]
    products = torch.matmul(query if heads > 1 else query.expand(-1, 2, -1), keys)[:, :heads]
    return products.relu_().mul_(w.unsqueeze(2)).sum(1)


def _paged(
    query: Tensor, w: Tensor, view: CacheView, context_lens: Tensor, block_table: Tensor, max_k: int | None
) -> Tensor:
    host, lengths = is_host(context_lens), context_lens
    known = max(0, _longest(lengths)) if host or max_k is None else 0
    width = known if max_k is None else max_k
    longest = min(width, known) if host else width
    scores = torch.full((query.shape[0], width), -math.inf, device=query.device)
    if longest == 0 or not block_table.shape[1] or not query.shape[0]:
        return scores
    tiled = _tiled(longest)
    entry = torch.arange(tiled, device=query.device)
    page = entry.div(view.page, rounding_mode="floor")
    slots = block_table.index_select(1, page.clamp(max=block_table.shape[1] - 1)) * view.page + entry % view.page
    hidden = entry >= lengths.unsqueeze(1)
    slots = slots.masked_fill_(hidden, 0)
    step = max(1, (SCORE_VALUES if host else SCORE_VALUES_DEVICE) // (tiled * view.width))
    for at in range(0, query.shape[0], step):
        rows = slice(at, at + step)
        found = cache.gather(view, slots[rows].reshape(-1)).view(-1, tiled, view.width)
        scores[rows, :longest] = _score(query[rows], w[rows], found.transpose(1, 2).contiguous())[:, :longest]
    scores[:, :longest].masked_fill_(hidden[:, :longest], -math.inf)
    return scores


def candidate_mask(candidates: Tensor, width: int, block: int) -> Tensor:
    """bool ``[T, width]``: which columns lie in a candidate block."""
    blocks = -(-width // block)
    chosen = torch.zeros(candidates.shape[0], blocks + 1, dtype=torch.bool, device=candidates.device)
    chosen.scatter_(1, candidates.long().where(candidates >= 0, blocks).clamp_(max=blocks), True)
    return chosen[:, :blocks].repeat_interleave(block, dim=1)[:, :width]


def topk(
    scores: Tensor,
    k: int,
    *,
    end: Tensor,
    offset: Tensor | None = None,
    want_values: bool = False,
    out: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """The best ``min(k, end)`` columns of each row by (score descending, position ascending), in ascending order.

    :param scores: ``[T, n]``; a column at or past ``end`` int32 ``[T]``, of -inf or NaN is never chosen.
    :param offset: int32 ``[T]`` added to the chosen positions.
    :returns: int32 ``[T, k]``, -1 padded at the end; with ``want_values`` also their scores (-inf in the padding).
    """
    if scores.dim() != 2 or end.shape[0] != scores.shape[0]:
        raise shape_error("index.topk", "end", f"[{scores.shape[0]}]", list(end.shape))
    rows, n = scores.shape
    if k < 1:
        raise shape_error("index.topk", "k", "at least 1", k)
    if offset is not None:
        check_like("index.topk", "offset", offset, end.shape)
    if out is not None:
        check_like("index.topk", "out", out, (rows, k))
    column = torch.arange(n, dtype=torch.int32, device=scores.device)
    open_ = (column < end.unsqueeze(1)) & (scores > -math.inf)
    if n > k:
        visible = scores.masked_fill(~open_, -math.inf)
        cut = visible.topk(k, dim=1, sorted=True).values[:, -1:]
        above = visible > cut
        # Equal scores at the cut: the lower positions fill what is left.
        tied = (visible == cut) & open_
        left = k - above.sum(1, keepdim=True)
        open_ = above | (tied & (tied.cumsum(1) <= left))
    place = torch.where(open_, open_.cumsum(1) - 1, k)
    found = torch.full((rows, k + 1), -1, dtype=torch.int32, device=scores.device)
    found.scatter_(1, place, column.expand(rows, n))
    chosen = found[:, :k].contiguous()
    values = None
    if want_values:
        values = scores.float().gather(1, chosen.long().clamp_(min=0)) if n else scores.new_zeros(rows, k).float()
        values = values.masked_fill(chosen < 0, -math.inf)
    if offset is not None:
        chosen = torch.where(chosen < 0, chosen, chosen + offset.unsqueeze(1))
    if out is not None:
        chosen = out.copy_(chosen)
    return chosen if values is None else (chosen, values)


def block_max(scores: Tensor, valid: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Largest visible score of each block ``[T, nb]``; the block of the newest visible entry becomes +inf.

    :param valid: int32 ``[T]``, visible columns of each row.
    :returns: fp32 block scores (-inf: nothing visible) and int32 ``[T]`` counts of blocks that have a visible entry.
    """
    if scores.dim() != 2 or block < 1:
        raise shape_error("index.block_max", "scores, block", "[T, n] and at least 1", (list(scores.shape), block))
    rows, n = scores.shape
    check_like("index.block_max", "valid", valid, (rows,))
    blocks = -(-n // block)
    padded = torch.full((rows, blocks * block), -math.inf, device=scores.device)
    padded[:, :n] = scores
    padded.masked_fill_(torch.arange(blocks * block, device=scores.device) >= valid.unsqueeze(1), -math.inf)
    best = padded.view(rows, blocks, block).amax(2) if blocks else padded.view(rows, 0)
    best = best.clamp_(max=torch.finfo(torch.bfloat16).max)
    counts = (valid + (block - 1)).div(block, rounding_mode="floor").to(torch.int32)
    newest = torch.arange(blocks, device=scores.device) == (counts - 1).unsqueeze(1)
    return best.masked_fill_(newest, math.inf), counts


def restore(compact: Tensor, candidates: Tensor, block: int, *, offset: Tensor | None = None) -> Tensor:
    """Compact positions ``[T, k]`` inside the candidate blocks ``[T, nb]`` -> positions, in place; missing -> -1."""
    if compact.dim() != 2 or candidates.dim() != 2 or candidates.shape[0] != compact.shape[0]:
        raise shape_error("index.restore", "candidates", f"[{compact.shape[0]}, nb]", list(candidates.shape))
    if offset is not None:
        check_like("index.restore", "offset", offset, compact.shape[:1])
    position = compact.long()
    which = position.div(block, rounding_mode="floor")
    missing = (position < 0) | (which >= candidates.shape[1])
    chosen = candidates.long().gather(1, which.masked_fill(missing, 0))
    missing |= chosen < 0
    restored = chosen * block + position % block
    if offset is not None:
        restored += offset.unsqueeze(1)
    return compact.copy_(restored.masked_fill_(missing, -1))
