"""The compressor's softmax over groups of ``ratio`` tokens, and its ring of past rows (``spec/kernels.md`` 2.2).

State is fp32 ``[slots, ring, 2, d]``: plane 0 the score (gate), plane 1 the latent (value); row = position mod ring.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_cuda import rows
from deepinfer_cuda.plain import plain_op
from deepinfer_cuda.tl.store import compress as kernels

RESULTS = {torch.bfloat16: "bfloat16", torch.float32: "float32"}
MOST_MEMBERS = 8
"""Rows of a group that a thread holds."""


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
    :param row_seq: int32 ``[sum C]``, sequence of each output row; None derives it from ``cu_c``, and waits for the
        device.
    :param cu_q: int32 ``[n + 1]`` of new rows; ``cu_k`` of lengths after the chunk; ``cu_c`` of output rows, at
        least one for every sequence (unused rows are zero).
    :param perm: row of ``score`` that holds the t-th token, when they are permuted.
    :returns: ``[sum C, d]`` of ``dtype``.
    """
    bounds = (cu_q, cu_k, cu_c)
    if (
        row_seq is None
        or row_seq.dim() != 1
        or not _takes(score, latent, state, ratio, dtype)
        or state.shape[1] < ratio
        or not all(_is_index(t, cu_q.shape) for t in bounds)
        or not _is_index(state_slot, (cu_q.numel() - 1,))
        or not _is_index(row_seq, row_seq.shape)
        or not (perm is None or _is_index(perm, score.shape[:1]))
    ):
        return plain_op("compress.prefill")(  # type: ignore[no-any-return]
            score, latent, state, state_slot, row_seq, *bounds, ratio, perm=perm, dtype=dtype
        )
    out = torch.empty(row_seq.shape[0], score.shape[1], dtype=dtype, device=score.device)
    if out.numel():
        launch = kernels.compress_prefill(
            width=score.shape[1], ratio=ratio, dtype=RESULTS[dtype], permuted=perm is not None
        )
        launch(score, latent, state, state_slot, row_seq, *bounds, 0 if perm is None else perm, out)
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

    Rows of a sequence follow each other in order of position, as decode steps have them.

    :param state_slot: int32 ``[T]``; negative skips a row. ``context_lens`` int32 ``[T]`` = position + 1.
    :returns: ``[T, d]`` of ``dtype``.
    :raises ShapeContractError: the ring is too short for ``max_q`` rows of one sequence.
    """
    if (
        not _takes(score, latent, state, ratio, dtype)
        or state.shape[1] < ratio + max_q - 1
        or not _is_index(state_slot, score.shape[:1])
        or not _is_index(context_lens, score.shape[:1])
    ):
        return plain_op("compress.decode")(  # type: ignore[no-any-return]
            score, latent, state, state_slot, context_lens, ratio, max_q=max_q, dtype=dtype
        )
    out = torch.empty(score.shape, dtype=dtype, device=score.device)
    if out.numel():
        launch = kernels.compress_decode(width=score.shape[1], ratio=ratio, dtype=RESULTS[dtype])
        launch(score, latent, state, state_slot, context_lens, out)
    return out


def state_copy(src: Tensor, dst: Tensor, last_hit: int) -> None:
    """Copy the last positions before ``last_hit`` between rings ``[ring, 2, d]`` of different sizes."""
    both = (src, dst)
    if (
        not rows.on_device(src, dst)
        or any(t.dim() != 3 or t.dtype != torch.float32 or not t.is_contiguous() for t in both)
        or src.shape[1:] != dst.shape[1:]
        or not all(rows.is_aligned(t) for t in both)
        or not kernels.lanes_of(2 * src.shape[2])
        or src.shape[1] != 2
    ):
        plain_op("compress.state_copy")(src, dst, last_hit)
        return
    count = min(src.shape[0], dst.shape[0], last_hit)
    if count:
        launch = kernels.ring_copy(width=src.shape[2])
        launch(src.view(src.shape[0], -1), dst.view(dst.shape[0], -1), last_hit, count)


def _takes(score: Tensor, latent: Tensor, state: Tensor, ratio: int, dtype: torch.dtype) -> bool:
    """Whether rows and rings are fp32 on a device, of one width that the kernels know, and aligned."""
    if score.shape != latent.shape or score.dim() != 2 or state.dim() != 4 or dtype not in RESULTS:
        return False
    width = score.shape[1]
    fits = state.shape[2:] == (2, width) and state.stride()[1:] == (2 * width, width, 1) and state.shape[0] > 0
    tensors = (score, latent, state)
    return (
        fits
        and 1 <= ratio <= MOST_MEMBERS
        and kernels.lanes_of(width) > 0
        and rows.on_device(*tensors)
        and all(t.dtype == torch.float32 and rows.is_aligned(t) for t in tensors)
    )


def _is_index(t: Tensor, shape: tuple[int, ...] | torch.Size) -> bool:
    return rows.on_device(t) and t.dtype == torch.int32 and t.shape == torch.Size(shape) and t.is_contiguous()


OPS = {"compress.prefill": prefill, "compress.decode": decode, "compress.state_copy": state_copy}
