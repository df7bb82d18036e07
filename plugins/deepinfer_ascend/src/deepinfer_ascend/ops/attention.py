"""Sparse attention (``spec/kernels.md`` 2.3): FlashMLA for heads of 512 values, the plain op for others.

Its kernels are for 64 query heads. Fewer are padded with zeros to 64, and more are done 64 at a time: heads share one
key and do not meet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from attrs import frozen
from torch import Tensor
from torch.nn.functional import pad

from deepinfer_ascend import vendor
from deepinfer_ascend.plain import plain_op

HEADS, WIDTH, TILE = 64, 512, 64
MAIN, EXTRA = ("v41",), ("v41", "v41_fp4")


@frozen
class Plan:
    """Decode plan: the handle of a step is made in the step, the object records what it was asked for."""

    shapes: Mapping[str, int] | None = None
    batch_invariant: bool = False


def plan(shapes: Mapping[str, int] | None = None, *, batch_invariant: bool = False) -> Plan:
    """A plan for decode steps of ``shapes``."""
    return Plan(shapes, batch_invariant)


def sparse_prefill(
    q: Tensor,
    kv: Tensor,
    indices: Tensor,
    *,
    scale: float,
    sink: Tensor | None = None,
    lengths: Tensor | None = None,
    round_probs: bool | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of ``q`` bf16 ``[T, h, D]`` over rows of ``kv`` bf16 ``[S, D]`` named by ``indices`` int32 ``[T, k]``.

    An index of -1 or >= S is invalid; a key listed twice counts twice.

    :param sink: fp32 ``[h]``. :param lengths: int32 ``[T]``, columns at or past it are invalid.
    :returns: out bf16 ``[T, h, D]`` and lse fp32 ``[T, h]`` (natural log, without sink, +inf when no key is valid; such
        a row of ``out`` is 0).
    :raises ShapeContractError: as the plain op.
    """
    plainly = kv.dim() != 2 or kv.dtype != q.dtype or kv.shape[1] != WIDTH or not kv.shape[0]
    if plainly or not _takes(q, indices, sink, lengths, round_probs, out):
        return plain_op("attn.sparse_prefill")(  # type: ignore[no-any-return]
            q, kv, indices, scale=scale, sink=sink, lengths=lengths, round_probs=round_probs, out=out
        )
    forward = vendor.symbol("flash_mla.flash_mla_sparse_fwd", q)
    keys, places = kv.contiguous().unsqueeze(1), filled(indices).unsqueeze(1)

    def heads(part: Tensor, its_sink: Tensor | None) -> tuple[Tensor, Tensor]:
        found, _, lse = forward(part, keys, places, scale, WIDTH, its_sink, lengths)
        return found, lse

    return _by_heads(q, sink, out, heads)


def sparse_decode(
    q: Tensor,
    window: Any,
    idx: Tensor,
    *,
    plan: Any = None,
    scale: float,
    sink: Tensor | None = None,
    lengths: Tensor | None = None,
    extra: Any = None,
    extra_idx: Tensor | None = None,
    extra_lengths: Tensor | None = None,
    round_probs: bool | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As :func:`sparse_prefill`, with keys read from caches, window and extra in one softmax.

    ``idx`` int32 ``[T, k1]`` are physical slots of ``window``, ``extra_idx`` ``[T, k2]`` of ``extra``; -1 is invalid.

    :raises ShapeContractError: as the plain op, which also reads caches of plain numbers.
    """
    given = (extra is not None) == (extra_idx is not None)
    reads = given and _reads(window, MAIN) and (extra is None or _reads(extra, EXTRA))
    more = extra_idx is None or _indexes(extra_idx, q, extra_lengths)
    if not reads or not more or not _takes(q, idx, sink, lengths, round_probs, out):
        return plain_op("attn.sparse_decode")(  # type: ignore[no-any-return]
            q, window, idx, plan=plan, scale=scale, sink=sink, lengths=lengths, extra=extra, extra_idx=extra_idx,
            extra_lengths=extra_lengths, round_probs=round_probs, out=out,
        )  # fmt: skip
    forward = vendor.symbol("flash_mla.flash_mla_with_kvcache", q)
    handle, _ = vendor.symbol("flash_mla.get_mla_metadata", q)()
    places = filled(idx).unsqueeze(1)
    second = None if extra_idx is None else filled(extra_idx).unsqueeze(1)

    def heads(part: Tensor, its_sink: Tensor | None) -> tuple[Tensor, Tensor]:
        found, lse = forward(
            part.unsqueeze(1), cache_of(window), None, None, WIDTH, handle, softmax_scale=scale, is_fp8_kvcache=True,
            indices=places, attn_sink=its_sink, extra_k_cache=None if extra is None else cache_of(extra),
            extra_indices_in_kvcache=second, topk_length=lengths, extra_topk_length=extra_lengths,
        )  # fmt: skip
        return found.squeeze(1), lse.squeeze(2)

    return _by_heads(q, sink, out, heads)


def cache_of(view: Any) -> Any:
    """What the library is given for a cache: uint8 ``[blocks, page, 1, bytes]`` on the device. Its equivalent takes
    the view, which knows the format that the library tells from the last dimension."""
    return view if view.tensor.device.type == "cpu" else view.tensor.unsqueeze(2)


def filled(indices: Tensor) -> Tensor:
    """``[T, k]`` with columns of -1 up to the next multiple of a tile."""
    missing = TILE - indices.shape[1] if indices.shape[1] < TILE else -indices.shape[1] % TILE
    return pad(indices, (0, missing), value=-1) if missing else indices


def _by_heads(
    q: Tensor, sink: Tensor | None, out: Tensor | None, call: Callable[..., tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """``call`` for each 64 heads of ``q``, the last of them padded with zeros."""
    count = q.shape[1]
    missing = -count % HEADS
    padded = pad(q, (0, 0, 0, missing)) if missing else q
    sinks = None if sink is None else pad(sink, (0, missing))
    parts = [
        call(padded[:, at : at + HEADS].contiguous(), None if sinks is None else sinks[at : at + HEADS].contiguous())
        for at in range(0, count, HEADS)
    ]
    whole, lse = parts[0] if len(parts) == 1 else tuple(torch.cat(found, 1) for found in zip(*parts, strict=True))
    whole, lse = whole[:, :count], lse[:, :count].contiguous()
    return (whole.contiguous() if out is None else out.copy_(whole)), lse


def _takes(
    q: Tensor,
    indices: Tensor,
    sink: Tensor | None,
    lengths: Tensor | None,
    round_probs: bool | None,
    out: Tensor | None,
) -> bool:
    return (
        q.dtype == torch.bfloat16
        and q.dim() == 3
        and q.shape[2] == WIDTH
        and q.shape[0] > 0
        and q.shape[1] > 0
        and q.stride(2) == 1
        and round_probs is not False
        and _indexes(indices, q, lengths)
        and (sink is None or (sink.dtype == torch.float32 and sink.shape == q.shape[1:2]))
        and (out is None or (out.dtype == q.dtype and out.shape == q.shape))
    )


def _indexes(indices: Any, q: Tensor, lengths: Tensor | None) -> bool:
    fits = indices.dim() == 2 and indices.shape[0] == q.shape[0] and indices.dtype == torch.int32
    return fits and (lengths is None or (lengths.dtype == torch.int32 and lengths.shape == q.shape[:1]))


def _reads(view: Any, formats: tuple[str, ...]) -> bool:
    return view.format in formats and view.width == WIDTH and view.block_stride % 32 == 0 and view.rows()[1] > 0


OPS = {"attn.plan": plan, "attn.sparse_prefill": sparse_prefill, "attn.sparse_decode": sparse_decode}
