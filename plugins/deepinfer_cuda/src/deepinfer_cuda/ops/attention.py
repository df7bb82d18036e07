"""Sparse attention (``spec/kernels.md`` 2.3): bf16 queries take kernels, everything else the plain ops.

Heads of 512 values have kernels that fetch, expand and multiply side by side (``tl/attention/wide_decode.py`` and
``wide_prefill.py``); other widths take simpler ones (``narrow.py``). A row is computed by itself, its keys in the order
of their columns and cut, where it is cut, by the number of columns alone: it has the same bits in any batch. On Hopper
few rows of decode are cut into more pieces, unless the plan asks for batch invariance.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from attrs import frozen
from torch import Tensor

from deepinfer_cuda.plain import plain_op
from deepinfer_cuda.unproven import serves

PREFILL, DECODE = "attn.sparse_prefill", "attn.sparse_decode"
_FORMATS = ("v41", "v41_fp4")
_WIDE = 512
_TILE = 64
_MAX_TILES = 20
"""Tiles of 64 columns of one block: what its table of places has room for (``tl/attention/places.py``)."""
_MAX_ROWS = 65_535
_LOG2E = 1.4426950408889634
_flat_views: WeakKeyDictionary[Any, Tensor] = WeakKeyDictionary()


@frozen
class Plan:
    """Decode plan: what it was asked for, of which the kernels look at ``batch_invariant``."""

    shapes: Mapping[str, int] | None = None
    batch_invariant: bool = False


def plan(shapes: Mapping[str, int] | None = None, *, batch_invariant: bool = False) -> Plan:
    """A plan for decode steps of ``shapes``. ``batch_invariant``: the cut of a row does not look at the batch."""
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

    An index of -1 or >= S is invalid; a key listed twice counts twice. ``q`` may have any stride between rows.

    :param sink: fp32 ``[h]``. :param lengths: int32 ``[T]``, columns at or past it are invalid.
    :returns: out bf16 ``[T, h, D]`` and lse fp32 ``[T, h]`` (natural log, without sink, +inf when no key is valid; such
        a row of ``out`` is 0).
    :raises ShapeContractError: as the plain op, which also computes what has no kernel: fp32, unrounded probabilities,
        a scale of zero and below, more than 1,280 columns.
    """
    if not (
        serves(PREFILL)
        and _takes(q, indices, scale, sink, lengths, round_probs, out)
        and kv.dim() == 2
        and kv.dtype is torch.bfloat16
        and kv.shape[1] == q.shape[2]
        and kv.is_contiguous()
        and -(-indices.shape[1] // _TILE) <= _MAX_TILES
    ):
        return plain_op(PREFILL)(  # type: ignore[no-any-return]
            q, kv, indices, scale=scale, sink=sink, lengths=lengths, round_probs=round_probs, out=out
        )
    result, lse = _outputs(q, out)
    if not indices.shape[1] or not kv.shape[0]:
        return result.zero_(), lse.fill_(math.inf)
    if q.shape[0]:
        _launch_prefill(
            q, kv, indices, _or_any(lengths, indices), _or_any(sink, lse), result, lse, int(lengths is not None),
            int(sink is not None), scale * _LOG2E,
        )  # fmt: skip
    return result, lse


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

    :raises ShapeContractError: as the plain op, which also computes what has no kernel: fp32, unrounded probabilities,
        a scale of zero and below, caches of plain numbers, more than 2,560 columns (1,280 without an extra cache or
        where heads are narrow).
    """
    with_extra = extra is not None
    if not (
        serves(DECODE)
        and _takes(q, idx, scale, sink, lengths, round_probs, out)
        and _reads(window, q.shape[2])
        and with_extra == (extra_idx is not None)
        and (not with_extra or (_indexes(extra_idx, q, extra_lengths) and _reads(extra, q.shape[2])))
        and q.shape[0] <= _MAX_ROWS
        and _tiles(idx, extra_idx) <= (2 * _MAX_TILES if with_extra and q.shape[2] == _WIDE else _MAX_TILES)
    ):
        return plain_op(DECODE)(  # type: ignore[no-any-return]
            q, window, idx, plan=plan, scale=scale, sink=sink, lengths=lengths, extra=extra, extra_idx=extra_idx,
            extra_lengths=extra_lengths, round_probs=round_probs, out=out,
        )  # fmt: skip
    result, lse = _outputs(q, out)
    if not q.shape[0]:
        return result, lse
    second, more = (extra, extra_idx) if with_extra else (window, idx.new_empty((idx.shape[0], 0)))
    segments = _segments(q, _tiles(idx, extra_idx), plan)
    launch = _decode_kernel(q.shape[2], window.format, extra.format if with_extra else "", segments)
    launch(
        q, _flat(window), idx, _or_any(lengths, idx), _flat(second), more, _or_any(extra_lengths, idx),
        _or_any(sink, lse), result, lse, window.page, window.block_stride, second.page, second.block_stride,
        int(lengths is not None), int(extra_lengths is not None), int(sink is not None), scale * _LOG2E,
        _decode_blocks(q, segments),
    )  # fmt: skip
    return result, lse


def _segments(q: Tensor, tiles: int, plan: Any) -> int:
    """Pieces that the keys of a row are cut into, a block each: always two where bits may not depend on the batch.

    Otherwise four where that leaves no row waiting, and one where rows fill whole waves of blocks: a wave of halves
    takes 3/5 of one of whole rows, because of what the pieces tell each other.
    """
    rows, heads, width = q.shape
    if width != _WIDE or _capability(q.device) != (9, 0) or (isinstance(plan, Plan) and plan.batch_invariant):
        return 2
    multiprocessors, groups = _multiprocessors(q.device), rows * -(-heads // _TILE)
    if groups <= multiprocessors * 7 // 32 and tiles >= 4:  # more clusters of four do not find room at once
        return 4
    whole, halved = -(-groups // multiprocessors), -(-groups // (multiprocessors // 2))
    return 1 if whole * 5 <= halved * 3 and tiles <= _MAX_TILES else 2


def _decode_blocks(q: Tensor, segments: int) -> int:
    """Blocks, or on Hopper clusters of ``segments`` blocks, that share the rows of a group of heads."""
    rows, heads, width = q.shape
    if width != _WIDE or _capability(q.device) != (9, 0) or segments > 2:
        return rows
    return min(rows, max(1, _multiprocessors(q.device) // segments // -(-heads // _TILE)))


def _launch_prefill(q: Tensor, *arguments: Any) -> None:
    # TileLang takes seconds to import: only a process that launches kernels pays for it
    from deepinfer_cuda.tl.attention.prefill import sparse_prefill

    rows, heads, width = q.shape
    most = _multiprocessors(q.device) // -(-heads // _TILE) if width == _WIDE else rows
    sparse_prefill(width=width)(q, *arguments, min(rows, max(1, most)))


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _decode_kernel(width: int, window: str, extra: str, segments: int) -> Callable[..., None]:
    from deepinfer_cuda.tl.attention.decode import sparse_decode

    return sparse_decode(width=width, window_format=window, extra_format=extra, segments=segments)


def _takes(
    q: Tensor,
    indices: Tensor,
    scale: float,
    sink: Tensor | None,
    lengths: Tensor | None,
    round_probs: bool | None,
    out: Tensor | None,
) -> bool:
    """Whether these arguments suit the kernels; the plain op refuses those that suit nobody."""
    return (
        q.is_cuda
        and q.dtype is torch.bfloat16
        and q.dim() == 3
        and round_probs is not False
        and scale > 0
        and (q.shape[2] == _WIDE or (q.shape[2] % 32 == 0 and q.shape[2] <= 256))
        and q.stride(2) == 1
        and q.stride(1) == q.shape[2]
        and q.data_ptr() % 16 == 0
        and q.stride(0) % 8 == 0
        and _indexes(indices, q, lengths)
        and (sink is None or (sink.dtype is torch.float32 and sink.shape == q.shape[1:2] and sink.is_contiguous()))
        and (out is None or (out.dtype is q.dtype and out.shape == q.shape and out.is_contiguous()))
    )


def _indexes(indices: Any, q: Tensor, lengths: Tensor | None) -> bool:
    return (
        indices.dim() == 2
        and indices.shape[0] == q.shape[0]
        and indices.dtype is torch.int32
        and indices.is_contiguous()
        and (
            lengths is None
            or (lengths.dtype is torch.int32 and lengths.shape == q.shape[:1] and lengths.is_contiguous())
        )
    )


def _reads(view: Any, width: int) -> bool:
    """Whether the kernels read entries of ``view``. The wide ones load 16 bytes at a time."""
    if view.format not in _FORMATS or view.width != width:
        return False
    return width != _WIDE or (view.block_stride % 16 == 0 and view.tensor.data_ptr() % 16 == 0)


def _tiles(idx: Tensor, extra_idx: Tensor | None) -> int:
    """Tiles of a row, each source padded to whole ones."""
    return -(-idx.shape[1] // _TILE) + (0 if extra_idx is None else -(-extra_idx.shape[1] // _TILE))


def _flat(view: Any) -> Tensor:
    """All bytes from the first entry of ``view`` to its last, uint8 ``[n]``; made once for a view."""
    found = _flat_views.get(view)
    if found is None:
        units, page, size = view.tensor.shape
        span = (units - 1) * view.block_stride + page * size if units else 0
        found = _flat_views[view] = view.tensor.as_strided((span,), (1,))
    return found


def _outputs(q: Tensor, out: Tensor | None) -> tuple[Tensor, Tensor]:
    result = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    return result, torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)


def _or_any(given: Tensor | None, other: Tensor) -> Tensor:
    """What is passed for an argument that is not there: a tensor of its dtype that the kernel does not read."""
    return other.view(-1) if given is None else given


OPS = {"attn.plan": plan, PREFILL: sparse_prefill, DECODE: sparse_decode}
