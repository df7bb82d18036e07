"""The compressor: entries of groups of tokens, and the ring of past rows."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_ascend.jit.serving.parts import Served, is_int32, run

RESULTS = {torch.bfloat16: "bfloat16", torch.float32: "float32"}


def _takes(score: Tensor, latent: Tensor, state: Tensor, dtype: torch.dtype) -> bool:
    return (
        score.dim() == 2
        and score.shape == latent.shape
        and {score.dtype, latent.dtype, state.dtype} == {torch.float32}
        and state.dim() == 4
        and state.shape[2:] == (2, score.shape[1])
        and state.numel() > 0
        and state[0].is_contiguous()
        and score.numel() > 0
        and dtype in RESULTS
    )


def flat_state(state: Tensor) -> Tensor:
    """All values from the first slot's first to the last slot's last."""
    return state.as_strided(((state.shape[0] - 1) * state.stride(0) + state[0].numel(),), (1,))


def prefill(
    served: Served,
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
    """``compress.prefill`` where the sequence of each entry is given."""
    sums = (cu_q, cu_k, cu_c)
    fits = row_seq is not None and is_int32(state_slot, row_seq, *sums) and (perm is None or is_int32(perm))
    fits = fits and _takes(score, latent, state, dtype) and state.shape[1] >= ratio and len(state_slot) > 0
    shaped = all(len(x) == len(state_slot) + 1 for x in sums) and (perm is None or len(perm) == len(score))
    if not fits or not shaped or row_seq is None or not len(row_seq):
        return served.op(  # type: ignore[no-any-return]
            score, latent, state, state_slot, row_seq, *sums, ratio, perm=perm, dtype=dtype
        )
    width, values = score.shape[1], flat_state(state)
    order = torch.arange(len(score), dtype=torch.int32) if perm is None else perm.contiguous()
    given = {
        "score": score.contiguous(), "latent": latent.contiguous(), "order": order, "state": values,
        "state_slot": state_slot.contiguous(), "first_row": cu_q.contiguous(), "ends": cu_k.contiguous(),
        "ring": state.shape[1], "stride": state.stride(0), "n": len(state_slot), "tokens": len(score),
        "size": values.numel(),
    }  # fmt: skip
    out = torch.empty(len(row_seq), width, dtype=dtype)
    sizes = {"width": width, "ratio": ratio, "dtype": RESULTS[dtype]}
    entries = {"sequence": row_seq.contiguous(), "first_entry": cu_c.contiguous(), "entries": len(out)}
    run("compress_chunk", len(out), sizes, out=out, **entries, **given)
    run("ring_chunk", len(state_slot) * state.shape[1], {"width": width}, **given)
    return out


def decode(
    served: Served,
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
    """``compress.decode``."""
    fits = is_int32(state_slot, context_lens) and len(state_slot) == len(context_lens) == len(score)
    if not fits or not _takes(score, latent, state, dtype) or state.shape[1] < ratio + max_q - 1:
        return served.op(  # type: ignore[no-any-return]
            score, latent, state, state_slot, context_lens, ratio, max_q=max_q, dtype=dtype
        )
    width, values = score.shape[1], flat_state(state)
    given = {
        "state": values, "state_slot": state_slot.contiguous(), "lengths": context_lens.contiguous(),
        "ring": state.shape[1], "stride": state.stride(0), "rows": len(score), "size": values.numel(),
    }  # fmt: skip
    pair = {"score": score.contiguous(), "latent": latent.contiguous()}
    run("ring_step", len(score), {"width": width}, **pair, **given)
    out = torch.empty(score.shape, dtype=dtype)
    run("compress_step", len(score), {"width": width, "ratio": ratio, "dtype": RESULTS[dtype]}, out=out, **given)
    return out


def state_copy(served: Served, src: Tensor, dst: Tensor, last_hit: int) -> None:
    """``compress.state_copy``."""
    fits = src.dim() == dst.dim() == 3 and src.shape[1:] == dst.shape[1:] and src.shape[1] == 2
    whole = src.is_contiguous() and dst.is_contiguous() and src.dtype == dst.dtype == torch.float32
    if not fits or not whole:
        served.op(src, dst, last_hit)
        return
    count, sizes = min(len(src), len(dst), last_hit), {"width": src.shape[2]}
    run("ring_copy", 2 * count, sizes, src=src, dst=dst, count=count, end=last_hit, large=len(src), small=len(dst))


SERVED = {"compress.prefill": prefill, "compress.decode": decode, "compress.state_copy": state_copy}
