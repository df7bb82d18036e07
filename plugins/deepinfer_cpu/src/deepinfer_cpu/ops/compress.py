"""The compressor's softmax over groups of ``ratio`` tokens, and its ring of past rows (``spec/kernels.md`` 2.2).

State is fp32 ``[slots, ring, 2, d]``: plane 0 the score (gate), plane 1 the latent (value); row = position mod ring.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from deepinfer_cpu.contracts import INTEGERS, check_like, shape_error


def combine(scores: Tensor, latents: Tensor) -> Tensor:
    """fp32 ``[ratio, n, d]`` each -> ``[n, d]``: softmax over the group per channel, weighted sum."""
    e = (scores - scores.amax(0)).exp_()
    total = e[0]
    weighted = e[0] * latents[0]
    for m in range(1, e.shape[0]):  # in token order, so that a row never depends on its neighbours
        total = total + e[m]
        weighted = weighted + e[m] * latents[m]
    return weighted / total


def _check(op: str, score: Tensor, latent: Tensor, state: Tensor) -> None:
    if score.shape != latent.shape or score.dim() != 2:
        raise shape_error(op, "latent", f"shaped like score {list(score.shape)}", list(latent.shape))
    if state.dim() != 4 or state.shape[2] != 2 or state.shape[3] != score.shape[1]:
        raise shape_error(op, "state", f"[slots, ring, 2, {score.shape[1]}]", list(state.shape))
    if score.dtype != torch.float32 or latent.dtype != torch.float32 or state.dtype != torch.float32:
        raise shape_error(op, "score, latent, state", "float32", (score.dtype, latent.dtype, state.dtype))


def prefill(
    score: Tensor,
    latent: Tensor,
    state: Tensor,
    state_slot: Tensor,
    row_seq: Tensor | None,
    cu_q: Tensor,
    cu_k: Tensor,
    cu_c: Tensor,
    ratio: int,
    *,
    perm: Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """Entries completed by a prefill chunk of each sequence, then the chunk's last rows go to the ring.

    :param score: fp32 ``[T, d]``; ``latent`` likewise; ``state`` is read before it is overwritten.
    :param row_seq: int32 ``[sum C]``, sequence of each output row; None derives it from ``cu_c``.
    :param cu_q: int32 ``[n + 1]`` of new rows; ``cu_k`` of lengths after the chunk; ``cu_c`` of output rows, at
        least one for every sequence (unused rows are zero).
    :param perm: row of ``score`` that holds the t-th token, when they are permuted.
    :returns: ``[sum C, d]`` of ``dtype``.
    """
    _check("compress.prefill", score, latent, state)
    ring = state.shape[1]
    if ring < ratio:
        raise shape_error("compress.prefill", "state", f"a ring of at least {ratio} rows", ring)
    check_like("compress.prefill", "state_slot", state_slot, (cu_q.numel() - 1,), *INTEGERS)
    check_like("compress.prefill", "cu_k", cu_k, cu_q.shape, *INTEGERS)
    check_like("compress.prefill", "cu_c", cu_c, cu_q.shape, *INTEGERS)
    cq, ck, cc = (t.numpy().astype(np.int64) for t in (cu_q, cu_k, cu_c))
    slots = state_slot.numpy().astype(np.int64)
    q, end = np.diff(cq), np.diff(ck)
    start = end - q
    seq = np.repeat(np.arange(q.size), np.diff(cc)) if row_seq is None else row_seq.numpy().astype(np.int64)
    group = start[seq] // ratio + np.arange(seq.size) - cc[seq]
    done = np.flatnonzero((group + 1) * ratio <= end[seq])
    out = torch.zeros(seq.size, score.shape[1], dtype=dtype)
    if perm is not None:
        score, latent = score[perm.long()], latent[perm.long()]
    if done.size:
        seq, group = seq[done], group[done]
        scores, latents = [], []
        for m in range(ratio):
            position = group * ratio + m
            fresh = position >= start[seq]
            row = torch.from_numpy(np.where(fresh, cq[seq] + position - start[seq], 0))
            s, v = score[row], latent[row]
            if not fresh.all():
                old = np.flatnonzero(~fresh)
                kept = state[torch.from_numpy(slots[seq[old]]), torch.from_numpy(position[old] % ring)]
                s[torch.from_numpy(old)], v[torch.from_numpy(old)] = kept[:, 0], kept[:, 1]
            scores.append(s)
            latents.append(v)
        out[torch.from_numpy(done)] = combine(torch.stack(scores), torch.stack(latents)).to(dtype)
    kept_rows = np.minimum(q, ring)
    seq = np.repeat(np.arange(q.size), kept_rows)
    back = np.arange(seq.size) - np.repeat(np.cumsum(kept_rows), kept_rows)  # -kept .. -1
    row = torch.from_numpy(cq[seq + 1] + back)
    where = (torch.from_numpy(slots[seq]), torch.from_numpy((end[seq] + back) % ring))
    state[where] = torch.stack([score[row], latent[row]], dim=1)
    return out


def decode(
    score: Tensor,
    latent: Tensor,
    state: Tensor,
    state_slot: Tensor,
    context_lens: Tensor,
    ratio: int,
    *,
    max_q: int,
    dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """Every row is written to its ring first; rows that complete a group then yield its entry, others zero.

    :param state_slot: int32 ``[T]``; negative skips a row. ``context_lens`` int32 ``[T]`` = position + 1.
    :returns: ``[T, d]`` of ``dtype``.
    :raises ShapeContractError: the ring is too short for ``max_q`` rows of one sequence.
    """
    _check("compress.decode", score, latent, state)
    ring = state.shape[1]
    if ring < ratio + max_q - 1:
        raise shape_error("compress.decode", "state", f"a ring of at least {ratio + max_q - 1} rows", ring)
    check_like("compress.decode", "state_slot", state_slot, score.shape[:1], *INTEGERS)
    check_like("compress.decode", "context_lens", context_lens, score.shape[:1], *INTEGERS)
    slots, length = state_slot.numpy().astype(np.int64), context_lens.numpy().astype(np.int64)
    out = torch.zeros(score.shape, dtype=dtype)
    real = np.flatnonzero((slots >= 0) & (length > 0))
    if real.size < slots.size:
        slots, length = slots[real], length[real]
        score, latent = score[torch.from_numpy(real)], latent[torch.from_numpy(real)]
    if not real.size:
        return out
    position = length - 1
    state[torch.from_numpy(slots), torch.from_numpy(position % ring)] = torch.stack([score, latent], dim=1)
    done = np.flatnonzero(length % ratio == 0)
    if done.size:
        rows = position[done] + np.arange(1 - ratio, 1)[:, None]  # [ratio, m]
        members = state[torch.from_numpy(slots[done]), torch.from_numpy(rows % ring)]  # [ratio, m, 2, d]
        entries = combine(members[:, :, 0], members[:, :, 1]).to(dtype)
        out[torch.from_numpy(real[done])] = entries
    return out


def state_copy(src: Tensor, dst: Tensor, last_hit: int) -> None:
    """Copy the last positions before ``last_hit`` between rings ``[ring, 2, d]`` of different sizes."""
    if src.dim() != 3 or dst.dim() != 3 or src.shape[1:] != dst.shape[1:]:
        raise shape_error("compress.state_copy", "dst", f"[ring, 2, {src.shape[-1]}]", list(dst.shape))
    count = min(src.shape[0], dst.shape[0], last_hit)
    position = torch.arange(last_hit - count, last_hit)
    dst[position % dst.shape[0]] = src[position % src.shape[0]]
