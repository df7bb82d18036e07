"""The compressor's softmax over groups of ``ratio`` tokens, and its ring of past rows (``spec/kernels.md`` 2.2).

State is fp32 ``[slots, ring, 2, d]``: plane 0 the score (gate), plane 1 the latent (value); row = position mod ring.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_cpu.contracts import INTEGERS, check_like, shape_error
from deepinfer_cpu.scalars import is_host


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
    :param row_seq: int32 ``[sum C]``, sequence of each output row; None derives it from ``cu_c``,
        and waits for the device.
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
    cq, ck, cc = cu_q.long(), cu_k.long(), cu_c.long()
    n, device = cq.shape[0] - 1, score.device
    slots, q, end = state_slot.long(), cq.diff(), ck.diff()
    start = end - q
    if perm is not None:
        score, latent = score[perm.long()], latent[perm.long()]
    if row_seq is None:
        row_seq = torch.repeat_interleave(torch.arange(n, device=device), cc.diff())
    seq = row_seq.long()
    out = torch.zeros(seq.shape[0], score.shape[1], dtype=dtype, device=device)
    if not n or not seq.shape[0] or not score.shape[0]:
        return out
    begin, until = start[seq], end[seq]
    group = begin.div(ratio, rounding_mode="floor") + torch.arange(seq.shape[0], device=device) - cc[seq]
    done = ((group + 1) * ratio <= until).unsqueeze(1)
    position = group * ratio + torch.arange(ratio, device=device).unsqueeze(1)  # [ratio, rows]
    fresh = (position >= begin).unsqueeze(2)
    row = (cq[seq] + position - begin).clamp(0, score.shape[0] - 1)
    kept = state[slots[seq].unsqueeze(0), position % ring]  # [ratio, rows, 2, d]
    scores, latents = (torch.where(fresh, x[row], kept[:, :, i]) for i, x in enumerate((score, latent)))
    out = torch.where(done, combine(scores, latents).to(dtype), out)
    back = torch.arange(ring, device=device)  # 0: the chunk's last row
    rows = (cq[1:].unsqueeze(1) - 1 - back).reshape(-1)
    wanted = (back < q.unsqueeze(1)).reshape(-1)
    where = slots.unsqueeze(1).expand(n, ring).reshape(-1), ((end.unsqueeze(1) - 1 - back) % ring).reshape(-1)
    _write(state, where, score, latent, rows, wanted)
    return out


def _write(
    state: Tensor, where: tuple[Tensor, Tensor], score: Tensor, latent: Tensor, rows: Tensor, wanted: Tensor
) -> None:
    """``state[where] = rows`` of score and latent where ``wanted``. On a device, which is not asked how many those are,
    an unwanted row repeats the first wanted one; where none is wanted, what is there is written over itself."""
    slots, ring_rows = where
    if is_host(wanted):
        kept = wanted.nonzero().squeeze(1)
        slots, ring_rows, rows = slots[kept], ring_rows[kept], rows[kept]
        state[slots, ring_rows] = torch.stack([score[rows], latent[rows]], dim=1)
        return
    first = wanted.to(torch.uint8).argmax(0, keepdim=True)
    source = torch.where(wanted, torch.arange(wanted.shape[0], device=wanted.device), first)
    slots, ring_rows = slots[source].clamp(min=0), ring_rows[source]
    rows = rows[source].clamp(min=0)
    new = torch.stack([score[rows], latent[rows]], dim=1)
    state[slots, ring_rows] = torch.where(wanted[first].view(1, 1, 1), new, state[slots, ring_rows])


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
    slots, length, device = state_slot.long(), context_lens.long(), score.device
    out = torch.zeros(score.shape, dtype=dtype, device=device)
    if not score.shape[0] or not state.shape[0]:
        return out
    real = (slots >= 0) & (length > 0)
    position = length - 1
    _write(state, (slots, position % ring), score, latent, torch.arange(score.shape[0], device=device), real)
    done = real & (length % ratio == 0)
    if is_host(done) and not bool(done.any()):
        return out
    rows = position + torch.arange(1 - ratio, 1, device=device).unsqueeze(1)  # [ratio, T]
    members = state[slots.clamp(min=0), rows % ring]  # [ratio, T, 2, d]
    return torch.where(done.unsqueeze(1), combine(members[:, :, 0], members[:, :, 1]).to(dtype), out)


def state_copy(src: Tensor, dst: Tensor, last_hit: int) -> None:
    """Copy the last positions before ``last_hit`` between rings ``[ring, 2, d]`` of different sizes."""
    if src.dim() != 3 or dst.dim() != 3 or src.shape[1:] != dst.shape[1:]:
        raise shape_error("compress.state_copy", "dst", f"[ring, 2, {src.shape[-1]}]", list(dst.shape))
    count = min(src.shape[0], dst.shape[0], last_hit)
    position = torch.arange(last_hit - count, last_hit, device=src.device)
    dst[position % dst.shape[0]] = src[position % src.shape[0]]
